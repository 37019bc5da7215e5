"""Recorded lags: read once a minute, kept without the storage; the samples of a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from threading import Barrier, Event, Thread

import pytest

from tests.support.services import NOW
from tidemark.console.recorded_lags import (
    FRESH_S,
    KEPT,
    OVERVIEW,
    LagHistory,
    Period,
    Window,
    highest_lags,
)
from tidemark.lake.errors import StorageUnavailable
from tidemark.lake.status_history import LagSample

DAY = Period.DAY.window
UNAVAILABLE = StorageUnavailable(location="s3://lake", operation="reading", reason="no answer")


def sample(minutes_ago: float, lag: int | None) -> LagSample:
    return LagSample(checked_at=NOW - timedelta(minutes=minutes_ago), lag=lag)


class Storage:
    """Recorded lags to return, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads: list[tuple[Window, str | None]] = []
        self.next: Mapping[str, Sequence[LagSample]] | Exception = {"prices": [sample(1, 7)]}
        self.answers = Event()
        self.answers.set()

    def __call__(self, window: Window, pipeline: str | None) -> Mapping[str, Sequence[LagSample]]:
        self.reads.append((window, pipeline))
        assert self.answers.wait(30)
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def history(storage: Storage) -> Iterator[LagHistory]:
    history = LagHistory(storage, clock=lambda: storage.now)
    yield history
    storage.answers.set()
    history.close()


# -- reads ---------------------------------------------------------------------------------------


def test_recorded_lags_are_read_once_a_minute_for_each_window_and_pipeline(
    storage: Storage, history: LagHistory
) -> None:
    for _ in range(3):
        history.lags(DAY, "prices")
        history.lags(OVERVIEW)
    assert storage.reads == [(DAY, "prices"), (OVERVIEW, None)]
    storage.now = FRESH_S
    history.lags(DAY, "prices")
    assert len(storage.reads) == 2
    storage.now += 1
    storage.next = {"prices": [sample(0, 8)]}
    assert history.lags(DAY, "prices").lags == storage.next
    assert len(storage.reads) == 3


def test_the_last_lags_stay_while_the_storage_is_unavailable(
    storage: Storage, history: LagHistory
) -> None:
    good = history.lags(DAY, "prices").lags
    storage.next = UNAVAILABLE
    storage.now = FRESH_S + 1
    for _ in range(2):
        seen = history.lags(DAY, "prices")
        assert (seen.lags, seen.error) == (good, UNAVAILABLE)
    assert len(storage.reads) == 2
    storage.next = {}
    storage.now += FRESH_S + 1
    seen = history.lags(DAY, "prices")
    assert (seen.lags, seen.error) == ({}, None)


def test_a_storage_that_does_not_answer_delays_a_page_by_the_wait_only(
    storage: Storage, history: LagHistory
) -> None:
    storage.answers.clear()
    seen = history.lags(DAY, "prices", wait_s=0.01)
    assert (seen.lags, seen.error, seen.lacks("prices")) == ({}, None, False)
    history.lags(DAY, "prices", wait_s=0.01)
    assert len(storage.reads) == 1
    storage.answers.set()
    assert list(history.lags(DAY, "prices", wait_s=30).lags) == ["prices"]
    assert len(storage.reads) == 1


def test_pages_that_are_opened_at_once_share_a_read(storage: Storage, history: LagHistory) -> None:
    storage.answers.clear()
    barrier = Barrier(5)

    def open_page() -> None:
        barrier.wait()
        history.lags(OVERVIEW, wait_s=0.01)

    pages = [Thread(target=open_page) for _ in range(4)]
    for page in pages:
        page.start()
    barrier.wait()
    for page in pages:
        page.join()
    assert storage.reads == [(OVERVIEW, None)]


def test_only_the_newest_results_are_kept(storage: Storage, history: LagHistory) -> None:
    for number in range(KEPT + 1):
        history.lags(DAY, f"p{number}")
    history.lags(DAY, "p1")
    assert len(storage.reads) == KEPT + 1
    history.lags(DAY, "p0")
    assert len(storage.reads) == KEPT + 2


# -- samples to show -----------------------------------------------------------------------------


def test_the_highest_lag_of_each_step_and_the_newest_sample_are_shown() -> None:
    """Recorded lags and those of the running console are in any order."""
    recorded = [sample(31, 5), sample(29, 9), sample(16, 1), sample(14, 0)]
    own = [sample(3, 4), sample(2, 2), sample(20, 3), sample(1, None)]
    shown = highest_lags([*recorded, *own], DAY, NOW)
    assert [((NOW - each.checked_at) // timedelta(minutes=1), each.lag) for each in shown] == [
        (31, 5),
        (29, 9),
        (3, 4),
        (1, None),
    ]


def test_samples_of_the_future_are_not_shown() -> None:
    """The machine that recorded them had a wrong clock."""
    assert highest_lags([sample(-5, 7), sample(5, 1)], DAY, NOW) == [sample(5, 1)]


def test_the_highest_age_of_each_step_is_shown_beside_the_highest_lag() -> None:
    old = replace(sample(6, 10), lag_time=timedelta(hours=5))
    many = replace(sample(5, 1_000), lag_time=timedelta(seconds=1))
    few = replace(sample(4, 5), lag_time=timedelta(seconds=2))
    assert highest_lags([old, many, few, sample(3, 1)], DAY, NOW) == [old, many, sample(3, 1)]


def test_a_known_lag_of_a_step_hides_an_unknown_one() -> None:
    shown = highest_lags([sample(5, None), sample(4, 0), sample(3, None)], DAY, NOW)
    assert [each.lag for each in shown] == [0, None]


@pytest.mark.parametrize("period", Period)
def test_samples_before_the_period_are_not_shown(period: Period) -> None:
    window = period.window
    before = window.span / timedelta(minutes=1)
    shown = highest_lags([sample(before + 0.1, 1), sample(before - 0.1, 2)], window, NOW)
    assert [each.lag for each in shown] == [2]
    assert highest_lags([], window, NOW) == []

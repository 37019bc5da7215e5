"""The samples of recorded lags that a chart shows, and the start of a recorded state."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.services import NOW
from tidemark.console.recorded_lags import Period, StateStart, highest_lags, state_start
from tidemark.delta.status_history import LagSample

DAY = Period.DAY.window


def sample(minutes_ago: float, lag: int | None) -> LagSample:
    return LagSample(checked_at=NOW - timedelta(minutes=minutes_ago), lag=lag)


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


def test_lags_of_a_single_step_have_their_first_sample() -> None:
    """Two points make a line, also for a pipeline whose lag grows."""
    grows = [sample(9, 1), sample(8, 2), sample(7, 3)]
    assert highest_lags(grows, DAY, NOW) == [grows[0], grows[2]]


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


# -- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "start"),
    [
        ([], None),
        ([None, "ok"], None),
        (["LostRange", "ok"], None),
        (["ok", "LostRange", "LostRange"], (2, False)),
        (["LostRange", "ok", "LostRange"], (1, False)),
        (["ok", "LostRange", "LostRange, PipelineStalled"], (2, False)),
        (["LostRange", "LostRange, PipelineStalled"], (2, True)),
    ],
)
def test_a_state_starts_with_the_first_recorded_status_of_its_first_alarm(
    states: list[str | None], start: tuple[int, bool] | None
) -> None:
    """A state that the first status of the period has may be older."""
    recorded = [
        replace(sample(len(states) - number, 0), state=state) for number, state in enumerate(states)
    ]
    found = state_start(recorded, "LostRange, PipelineStalled")
    expected = start and StateStart("LostRange", NOW - timedelta(minutes=start[0]), start[1])
    assert found == expected

"""The newest values: shared by requests, kept during an outage, read in few threads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Barrier, Event, Thread

import pytest

from tidemark.console.newest import Key, Newest, NewestValues
from tidemark.kafka.errors import KafkaUnavailable, TopicMissing

DOWN = KafkaUnavailable(operation="describe", reason="no broker")
PRICES = Key("prices")


class Source:
    """Values to return, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0
        self.next: int | Exception = 7
        self.answers = Event()
        self.answers.set()

    def __call__(self) -> int:
        self.reads += 1
        assert self.answers.wait(30)
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def values(source: Source) -> Iterator[NewestValues]:
    values = NewestValues(
        fresh_s=5, kept=3, threads=2, outages=(KafkaUnavailable,), clock=lambda: source.now
    )
    yield values
    source.answers.set()
    values.close()


def test_a_value_of_each_key_is_read_again_after_it_is_no_longer_fresh(
    source: Source, values: NewestValues
) -> None:
    for _ in range(3):
        assert values.get(PRICES, source, 30).value == 7
        assert values.get(Key("prices", "read_committed"), source, 30).value == 7
    assert source.reads == 2
    source.now, source.next = 5, 8
    assert values.get(PRICES, source, 30).value == 7
    source.now = 5.1
    assert values.get(PRICES, source, 30).value == 8
    assert source.reads == 3


def test_the_newest_value_stays_during_an_outage_with_its_time_and_the_error(
    source: Source, values: NewestValues
) -> None:
    before = datetime.now(UTC)
    first = values.get(PRICES, source, 30)
    assert first.read_at
    assert before <= first.read_at <= datetime.now(UTC)
    assert not first.is_stale
    source.now, source.next = 6, DOWN
    for _ in range(2):
        seen = values.get(PRICES, source, 30)
        assert (seen.value, seen.read_at, seen.error) == (7, first.read_at, DOWN)
        assert seen.is_stale
    assert source.reads == 2
    source.now, source.next = 12, 9
    seen = values.get(PRICES, source, 30)
    assert (seen.value, seen.error, seen.is_stale) == (9, None, False)


def test_an_error_that_is_no_outage_removes_the_value(source: Source, values: NewestValues) -> None:
    values.get(PRICES, source, 30)
    missing = TopicMissing(topic="prices")
    for now, error in ((6, missing), (12, DOWN)):
        source.now, source.next = now, error
        seen = values.get(PRICES, source, 30)
        assert (seen.value, seen.error, seen.is_stale) == (None, error, False)


def test_a_read_that_does_not_end_delays_a_request_by_its_wait_only(
    source: Source, values: NewestValues
) -> None:
    source.answers.clear()
    for _ in range(2):
        seen = values.get(PRICES, source, 0.01)
        assert (seen.value, seen.error, seen.is_late, seen.is_stale) == (None, None, True, False)
    source.answers.set()
    assert values.get(PRICES, source, 30).value == 7
    assert source.reads == 1
    source.now = 6
    source.answers.clear()
    seen = values.get(PRICES, source, 0.01)
    assert (seen.value, seen.is_stale) == (7, True)
    source.answers.set()
    assert not values.get(PRICES, source, 30).is_stale


def test_requests_at_the_same_time_share_a_read(source: Source, values: NewestValues) -> None:
    source.answers.clear()
    barrier = Barrier(5)

    def request() -> None:
        barrier.wait()
        values.get(PRICES, source, 0.01)

    requests = [Thread(target=request) for _ in range(4)]
    for each in requests:
        each.start()
    barrier.wait()
    for each in requests:
        each.join()
    assert source.reads == 1


def test_only_the_newest_values_are_kept(source: Source, values: NewestValues) -> None:
    for number in range(4):
        values.get(Key(f"p{number}"), source, 30)
    values.get(Key("p1"), source, 30)
    assert source.reads == 4
    values.get(Key("p0"), source, 30)
    assert source.reads == 5


def test_no_log_line_contains_the_parts_of_a_key(
    source: Source, values: NewestValues, caplog: pytest.LogCaptureFixture
) -> None:
    """They include definitions of connections."""
    caplog.set_level(logging.INFO, logger="tidemark")
    for error in (DOWN, ZeroDivisionError("bug")):
        source.now += 6
        source.next = error
        values.get(Key("prices", ("password=hunter2",)), source, 30)
    assert caplog.text.count("item=prices") == 2
    assert "hunter2" not in caplog.text


def test_a_required_value_without_a_read_is_its_error() -> None:
    assert Newest(value=0, error=DOWN).required() == 0
    for _ in range(2):
        with pytest.raises(KafkaUnavailable) as raised:
            Newest(error=DOWN).required()
        assert raised.value is DOWN
    frames = len(raised.traceback)
    with pytest.raises(KafkaUnavailable) as raised:
        Newest(error=DOWN).required()
    assert len(raised.traceback) == frames

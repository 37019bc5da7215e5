"""The newest status of each pipeline: kept without Kafka, read seldom, in few threads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event

import pytest

from tests.support.consoles import a_status
from tests.support.waiting import wait_until
from tidemark.console.observer import (
    FRESH_S,
    KEPT_S,
    OVERDUE_S,
    REST,
    THREADS,
    StatusObserver,
)
from tidemark.delta.status_history import LagSample
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.ops.report.status import PipelineStatus

DOWN = KafkaUnavailable(operation="describe", reason="no broker")


class Reads:
    """Statuses to return, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processor_s = 0.0
        self.cost_s = 0.0
        self.calls: list[str] = []
        self.next: PipelineStatus | Exception = a_status(lag=7)

    def __call__(self, pipeline: str) -> PipelineStatus:
        self.calls.append(pipeline)
        self.processor_s += self.cost_s
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest.fixture
def observer(reads: Reads) -> Iterator[StatusObserver]:
    observer = StatusObserver(
        reads, clock=lambda: reads.now, processor_clock=lambda: reads.processor_s
    )
    yield observer
    observer.close()


def test_the_last_values_stay_while_kafka_is_unavailable(
    reads: Reads, observer: StatusObserver
) -> None:
    assert observer.one("prices").status == reads.next
    good = reads.next
    for failure in (DOWN, replace(a_status(lag=0), problem=DOWN, kafka_error=DOWN)):
        reads.next = failure
        reads.now += FRESH_S + 1
        seen = observer.one("prices")
        assert (seen.status, seen.error, seen.is_stale) == (good, DOWN, True)
    reads.next = a_status(lag=3)
    reads.now += FRESH_S + 1
    again = observer.one("prices")
    assert (again.status, again.error) == (reads.next, None)
    assert [sample.lag for sample in again.samples] == [7, 3]


def test_a_fresh_status_is_not_read_again(reads: Reads, observer: StatusObserver) -> None:
    for _ in range(3):
        observer.one("prices")
    assert reads.calls == ["prices"]


def test_an_overview_of_many_pipelines_reads_each_one_less_often(
    reads: Reads, observer: StatusObserver
) -> None:
    names = [f"p{number}" for number in range(200)]
    observer.many(names, wait_s=30)
    assert sorted(reads.calls) == sorted(names)
    reads.now += 99
    observer.many(names)
    assert len(reads.calls) == 200
    reads.now += 2
    observer.many(names)
    wait_until(lambda: len(reads.calls) == 400)


def test_a_status_is_stale_while_its_next_read_is_overdue(
    reads: Reads, observer: StatusObserver
) -> None:
    """Reads that hang raise no error, but the last values become old."""
    status = observer.one("prices").status
    may_end = Event()
    observer._read = lambda _: a_status(lag=9) if may_end.wait(60) else a_status(lag=0)
    reads.now = OVERDUE_S
    assert not observer.one("prices", wait_s=0).is_stale
    reads.now = OVERDUE_S + 1
    for seen in (observer.one("prices", wait_s=0), observer.many(["prices"], wait_s=0)["prices"]):
        assert (seen.status, seen.error, seen.is_stale) == (status, None, True)
    may_end.set()
    assert not observer.one("prices", wait_s=60).is_stale


def test_an_overview_that_refreshes_regularly_shows_no_stale_status(
    reads: Reads, observer: StatusObserver
) -> None:
    """It starts a read without waiting for it, so a refresh shows the status before."""
    observer.many(["prices"], wait_s=60)
    for number in range(20):
        reads.now += FRESH_S + (0.1 if number % 2 else -0.05)
        assert not observer.many(["prices"], wait_s=0)["prices"].is_stale
        wait_until(lambda: not observer._running)
    assert len(reads.calls) == 11


def test_a_status_of_many_pipelines_is_not_stale_between_its_reads(
    reads: Reads, observer: StatusObserver
) -> None:
    names = [f"p{number}" for number in range(200)]
    observer.many(names, wait_s=60)
    reads.now = 200
    observer._read = lambda _: a_status(lag=0)
    assert not observer._known("p7", 100.0).is_stale
    reads.now = 201
    assert observer._known("p7", 100.0).is_stale


def test_a_status_that_costs_much_processor_time_is_read_seldom(
    reads: Reads, observer: StatusObserver
) -> None:
    """The status of a truncated log reads all plans, which took 41 s for a long pipeline."""
    reads.cost_s = 41.0
    observer.one("prices", wait_s=60)
    for now, calls in ((REST * 41.0, 1), (REST * 41.0 + 1, 2)):
        reads.now = now
        assert not observer.one("prices", wait_s=60).is_stale
        assert not observer.many(["prices"], wait_s=60)["prices"].is_stale
        assert len(reads.calls) == calls
    reads.cost_s = 0.0
    reads.now *= 2
    observer.one("prices", wait_s=60)
    reads.now += FRESH_S + 1
    observer.one("prices", wait_s=60)
    assert len(reads.calls) == 4


def test_a_slow_read_without_processor_time_is_repeated_as_usual(reads: Reads) -> None:
    """A cluster that does not answer is read again soon, so that its return is visible."""

    def read(pipeline: str) -> PipelineStatus:
        Event().wait(FRESH_S / REST + 0.1)
        return reads(pipeline)

    observer = StatusObserver(read, clock=lambda: reads.now)
    observer.one("prices", wait_s=60)
    reads.now = FRESH_S + 0.1
    observer.one("prices", wait_s=60)
    assert len(reads.calls) == 2
    observer.close()


def test_a_status_without_requests_is_dropped(reads: Reads, observer: StatusObserver) -> None:
    for name in ("gone", "seen"):
        observer.one(name, wait_s=60)
    reads.next = DOWN
    for _ in range(2):
        reads.now += KEPT_S
        assert observer.one("seen", wait_s=60).status
    assert observer.one("gone", wait_s=60).status is None


def test_an_unexpected_error_is_shown_as_such(reads: Reads, observer: StatusObserver) -> None:
    reads.next = ZeroDivisionError("bug")
    seen = observer.one("prices")
    assert seen.status is None
    assert "ZeroDivisionError" in str(seen.error)


def test_slow_pipelines_block_neither_the_page_nor_more_than_their_threads() -> None:
    release, running = Event(), []

    def read(pipeline: str) -> PipelineStatus:
        running.append(pipeline)
        release.wait(30)
        return a_status(lag=1)

    observer = StatusObserver(read)
    names = [f"p{number}" for number in range(THREADS * 2)]
    seen = observer.many(names, wait_s=0.01)
    assert [each.status for each in seen.values()] == [None] * len(names)
    assert len(running) <= THREADS
    release.set()
    wait_until(lambda: all(each.status for each in observer.many(names, 0).values()), timeout_s=30)
    assert sorted(running) == names
    observer.close()


def test_samples_have_the_times_of_the_statuses(reads: Reads, observer: StatusObserver) -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    reads.next = replace(a_status(lag=5), checked_at=at)
    assert observer.one("prices").samples == (LagSample(checked_at=at, lag=5, state="ok"),)


def test_an_overview_waits_for_a_new_status_instead_of_an_old_one(
    reads: Reads, observer: StatusObserver
) -> None:
    observer.many(["prices"], wait_s=30)
    reads.next = a_status(lag=9)
    reads.now += 3_600
    status = observer.many(["prices"], wait_s=30)["prices"].status
    assert status is not None
    assert status.lag == 9


def test_one_request_alone_waits_for_a_slow_status() -> None:
    """With many pipelines, the reads take longer than a request waits."""
    may_end, times = Event(), Event()

    def read(_: str) -> PipelineStatus:
        times.set()
        assert may_end.wait(60)
        return a_status(lag=1)

    observer = StatusObserver(read)
    names = [f"pipeline-{number}" for number in range(3 * THREADS)]
    observer.many(names, wait_s=0.01)
    assert times.wait(60)
    before = time.monotonic()
    assert observer.many(names, wait_s=60)[names[0]].status is None
    assert time.monotonic() - before < 30
    may_end.set()
    wait_until(lambda: all(each.status for each in observer.many(names, 0).values()), timeout_s=60)
    observer.close()


def test_the_status_of_an_opened_pipeline_is_read_before_those_of_the_overview() -> None:
    started, may_end = [], Event()

    def read(pipeline: str) -> PipelineStatus:
        started.append(pipeline)
        assert may_end.wait(60)
        return a_status(lag=1)

    observer = StatusObserver(read)
    names = [f"pipeline-{number}" for number in range(3 * THREADS)]
    observer.many(names[:-1], wait_s=0)
    wait_until(lambda: len(started) == THREADS, timeout_s=60)
    observer.one(names[-1], wait_s=0)
    may_end.set()
    assert observer.one(names[-1], wait_s=60).status
    assert names[-1] in started[: 2 * THREADS]
    observer.close()


# -- another source --------------------------------------------------------------------------------


@dataclass
class Sources:
    """The source of every pipeline, which a test can change."""

    source: str = "a"

    def __call__(self, pipelines: Collection[str]) -> Mapping[str, str]:
        return dict.fromkeys(pipelines, self.source)


def test_a_status_and_samples_of_another_source_are_dropped_at_once(reads: Reads) -> None:
    """They are shown neither during an outage nor on an overview that does not wait."""
    sources = Sources()
    observer = StatusObserver(reads, sources, clock=lambda: reads.now)
    names = ["prices", "orders"]
    observer.current(names, wait_s=60)
    reads.next = DOWN
    sources.source = "b"
    for seen in (*observer.current(names, wait_s=60).values(), observer.one("prices")):
        assert (seen.status, seen.error, seen.samples) == (None, DOWN, ())
    reads.next = a_status(lag=3)
    sources.source = "c"
    (sample,) = observer.one("prices", wait_s=60).samples
    assert sample.lag == 3
    may_end = Event()
    observer._read = lambda _: a_status(lag=4) if may_end.wait(60) else a_status(lag=0)
    sources.source = "d"
    assert observer.many(names, wait_s=0)["prices"].status is None
    may_end.set()
    observer.close()


def test_a_read_of_the_previous_source_neither_delays_nor_changes_the_next_status() -> None:
    """The brokers of the previous connection can hang."""
    sources = Sources()
    begun, may_end = {"a": Event(), "b": Event()}, {"a": Event(), "b": Event()}

    def read(_: str) -> PipelineStatus:
        source = sources.source
        begun[source].set()
        assert may_end[source].wait(60)
        return a_status(lag=1 if source == "a" else 2)

    observer = StatusObserver(read, sources)
    observer.one("prices", wait_s=0)
    assert begun["a"].wait(60)
    (read_before,) = observer._running.values()
    sources.source = "b"
    observer.one("prices", wait_s=0)
    assert begun["b"].wait(10)
    may_end["a"].set()
    read_before.result(60)
    assert observer.one("prices", wait_s=0).status is None
    may_end["b"].set()
    status = observer.one("prices", wait_s=60).status
    assert status is not None
    assert status.lag == 2
    observer.close()


def test_a_process_ends_without_the_statuses_that_wait() -> None:
    """`tidemark console` with many pipelines ends at once, and so does Airflow."""
    program = f"""
import time
from tidemark.console.observer import StatusObserver

def read(name):
    print(name, flush=True)
    time.sleep(0.1)

StatusObserver(read).many([str(n) for n in range({10 * THREADS})], wait_s=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert 0 < len(done.stdout.split()) <= 2 * THREADS


def test_a_panic_of_a_read_is_an_error_and_later_reads_succeed() -> None:
    """A panic in a library written in Rust is no `Exception`."""

    class Panic(BaseException):
        """The panic."""

    def panics(_: str) -> PipelineStatus:
        raise Panic("index out of bounds")

    observer = StatusObserver(panics)
    try:
        for name in ("a", "b", "c", "d", "e"):
            assert observer.one(name, wait_s=60).error is not None
        observer._read = lambda _: a_status(lag=9)
        status = observer.one("f", wait_s=60).status
        assert status is not None
        assert status.lag == 9
    finally:
        observer.close()

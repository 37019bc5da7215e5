"""Keeps the newest status of each pipeline, so that pages open at once, also without Kafka."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from threading import Lock

from tidemark.core.parallel import result_of_thread
from tidemark.ops.report.observed_status import ObservedStatus
from tidemark.ops.report.status import PipelineStatus

THREADS = 2
"""Threads that read statuses. Each request to Kafka ends after `KAFKA_TIMEOUT_S`. The reads of a
long history need about 20 MB for each thread."""
KAFKA_TIMEOUT_S = 3.0
"""Longest time of a request to Kafka for a page, in seconds."""
STATUS_WAIT_S = KAFKA_TIMEOUT_S + 1.0
"""Longest time that the page of a pipeline or of a DAG run waits for statuses, in seconds. Without
Kafka, a status takes one timeout and the time to read the tables."""
OVERVIEW_WAIT_S = 2.0
"""Longest time that the overview waits for statuses, in seconds; later requests show the others."""
FRESH_S = 5.0
"""Age up to which the status of the shown pipeline is not read again, in seconds."""
READS_PER_SECOND = 2
"""Reads of the overview for all pipelines together; with many pipelines each one waits longer."""
OLD_S = 60.0
"""Age of a status from which on the overview waits for a new one, in seconds."""
OVERDUE_S = 30.0
"""Shortest time after which the next status is overdue, in seconds: several refreshes of a page."""
REST = 10
"""A pipeline is read again after this multiple of the processor time of its newest read."""
KEPT_S = 3_600.0
"""Time after its last request for which a status is kept, in seconds."""


class StatusObserver:
    """Reads statuses in threads of its own and keeps the newest one of each pipeline.

    Args:
        read: Returns the status of a pipeline.
        sources: Returns the source of each pipeline, such as its topic and cluster. After a change
            of the source, the observer drops the status and the samples of the pipeline.
        clock: Returns a monotonic time in seconds.
        processor_clock: Returns the processor time of the calling thread, in seconds.
    """

    def __init__(
        self,
        read: Callable[[str], PipelineStatus],
        sources: Callable[[Collection[str]], Mapping[str, Hashable]] = dict.fromkeys,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._read = read
        self._sources = sources
        self._clock = clock
        self._processor_clock = processor_clock
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tidemark-status")
        self._lock = Lock()
        self._running: dict[str, Future[None]] = {}
        self._queue: deque[str] = deque()
        self._reads = 0
        self._awaited: set[str] = set()
        self._source_of: dict[str, Hashable] = {}
        self._seen: dict[str, ObservedStatus] = {}
        self._costs: dict[str, float] = {}
        self._requested_at: dict[str, float] = {}

    def close(self) -> None:
        """Stop the threads after their current read."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def one(self, pipeline: str, wait_s: float = STATUS_WAIT_S) -> ObservedStatus:
        """Return the status of one pipeline; see `current`."""
        return self.current([pipeline], wait_s)[pipeline]

    def current(self, pipelines: Collection[str], wait_s: float) -> Mapping[str, ObservedStatus]:
        """Return current statuses, or after `wait_s` seconds the newest known ones.

        A status is current for `FRESH_S`, or longer in a request for many pipelines. If its read
        took much processor time, it is current for `REST` times this time. An example is the read
        of a truncated log with many plans.
        """
        age_s = _age_s(pipelines)
        running = self._refresh(pipelines, age_s)
        with self._lock:
            # Read these pipelines before those of the overview.
            self._queue = deque(sorted(self._queue, key=lambda name: name not in running))
        wait(running.values(), timeout=wait_s)
        return {name: self._known(name, age_s) for name in pipelines}

    def many(
        self, pipelines: Collection[str], wait_s: float = OVERVIEW_WAIT_S
    ) -> Mapping[str, ObservedStatus]:
        """Return the newest known status of each pipeline, and start to read old ones again.

        Waits at most `wait_s` seconds, and only for pipelines without a status or with an old one.
        Only one request waits for each read, because reads of many pipelines exceed `wait_s`.
        """
        age_s = _age_s(pipelines)
        running = self._refresh(pipelines, age_s)
        oldest = self._clock() - max(OLD_S, 2 * age_s)
        old = [name for name in running if self._known(name, age_s).read_at < oldest]
        with self._lock:
            old = [name for name in old if name not in self._awaited]
            self._awaited.update(name for name in old if name in self._running)
        wait([running[name] for name in old], timeout=wait_s)
        return {name: self._known(name, age_s) for name in pipelines}

    def _known(self, pipeline: str, age_s: float) -> ObservedStatus:
        """Return the newest status. The next one is overdue after twice its longest age."""
        with self._lock:
            known = self._seen.get(pipeline, ObservedStatus())
            overdue_s = max(OVERDUE_S, 2 * self._longest_age(pipeline, age_s))
        age_of_read = self._clock() - known.read_at
        return replace(known, is_overdue=known.status is not None and age_of_read > overdue_s)

    def _longest_age(self, pipeline: str, age_s: float) -> float:
        return max(age_s, REST * self._costs.get(pipeline, 0.0))

    def _refresh(self, pipelines: Collection[str], age_s: float) -> Mapping[str, Future[None]]:
        """Start to read statuses older than `age_s`; return the reads that have not ended."""
        now, sources = self._clock(), self._sources(pipelines)
        with self._lock:
            self._drop_unrequested(pipelines, now)
            for name in pipelines:
                if self._source_of.get(name) != sources[name]:
                    self._drop(name)
                self._source_of[name] = sources[name]
                known = self._seen.get(name, ObservedStatus())
                is_old = now - known.read_at > self._longest_age(name, age_s)
                if is_old and name not in self._running:
                    self._running[name] = Future()
                    self._queue.append(name)
            self._start_reads()
            return {name: self._running[name] for name in pipelines if name in self._running}

    def _drop_unrequested(self, requested: Iterable[str], now: float) -> None:
        """Remove statuses without a request for `KEPT_S`; the caller holds the lock."""
        self._requested_at |= dict.fromkeys(requested, now)
        for name in [name for name, at in self._requested_at.items() if now - at > KEPT_S]:
            if name not in self._running:
                del self._requested_at[name]
                self._drop(name)

    def _drop(self, pipeline: str) -> None:
        """Remove a status, and ignore the result of a running read; the caller holds the lock."""
        for values in (self._source_of, self._seen, self._costs):
            values.pop(pipeline, None)
        if pipeline not in self._queue:
            self._running.pop(pipeline, None)
            self._awaited.discard(pipeline)

    def _start_reads(self) -> None:
        """Start the next reads; the caller holds the lock.

        The pool never has more reads than threads: a process ends only after all reads of its pool.
        """
        while self._queue and self._reads < THREADS:
            name = self._queue.popleft()
            self._pool.submit(self._observe, name, self._running[name])
            self._reads += 1

    def _observe(self, pipeline: str, ended: Future[None]) -> None:
        started = self._processor_clock()
        found = result_of_thread(pipeline, self._read)
        cost = self._processor_clock() - started
        with self._lock:
            self._reads -= 1
            # The source can have changed since the read began.
            if self._running.get(pipeline) is ended:
                self._costs[pipeline] = cost
                before = self._seen.get(pipeline, ObservedStatus())
                self._seen[pipeline] = before.updated(found, self._clock())
                self._awaited.discard(pipeline)
                del self._running[pipeline]
            ended.set_result(None)
            # The pool refuses work while the process ends.
            with suppress(RuntimeError):
                self._start_reads()


def _age_s(pipelines: Collection[str]) -> float:
    """Return the age above which a request reads statuses again, in seconds."""
    return max(FRESH_S, len(pipelines) // READS_PER_SECOND)

"""Recorded lags, read at most once a minute, and the samples that a chart shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from threading import Lock
from typing import TypeAlias

from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_of_thread
from tidemark.lake.status_history import LagSample

FRESH_S = 60.0
"""Age up to which recorded lags are not read again, in seconds."""
WAIT_S = 3.0
"""Longest time that a page waits for the storage, in seconds."""
KEPT = 64
"""Results that are kept; the oldest is dropped first."""
_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The period of a chart, which ends now.

    Attributes:
        span: Its length.
        step: Length of the intervals of which a chart shows the highest value.
        tick: Time between two labels of the horizontal axis.
    """

    span: timedelta
    step: timedelta
    tick: timedelta


class Period(StrEnum):
    """The periods that a viewer can choose."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def window(self) -> Window:
        """The window of the period."""
        return _WINDOWS[self]


_WINDOWS: Mapping[Period, Window] = {
    Period.HOUR: Window(
        span=timedelta(hours=1), step=timedelta(minutes=1), tick=timedelta(minutes=10)
    ),
    Period.DAY: Window(span=timedelta(days=1), step=timedelta(minutes=15), tick=timedelta(hours=4)),
    Period.WEEK: Window(span=timedelta(days=7), step=timedelta(hours=1), tick=timedelta(days=1)),
    Period.MONTH: Window(span=timedelta(days=30), step=timedelta(hours=4), tick=timedelta(days=5)),
}
OVERVIEW = replace(Period.DAY.window, step=timedelta(minutes=30))
"""The window of the overview, whose lines are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLags:
    """The newest recorded lags that could be read, and the error of a later attempt.

    Attributes:
        lags: Recorded lags by pipeline, oldest first.
        error: The error of a later attempt; None if `lags` is current, or is being read.
        read_at: Monotonic time of the newest attempt, in seconds.
    """

    lags: Mapping[str, Sequence[LagSample]] = field(default_factory=dict)
    error: TidemarkError | None = None
    read_at: float = float("-inf")

    def lacks(self, pipeline: str) -> bool:
        """Whether a read has found no lag of a pipeline; False before the first read."""
        return self.read_at > float("-inf") and self.error is None and not self.lags.get(pipeline)


ReadLags: TypeAlias = Callable[[Window, str | None], Mapping[str, Sequence[LagSample]]]
"""Reads the recorded lags of a window, of one pipeline or of all."""
_Key: TypeAlias = tuple[Window, str | None]


class LagHistory:
    """Reads recorded lags in threads of its own and keeps them.

    Args:
        read: Reads recorded lags.
        clock: Returns a monotonic time in seconds.
    """

    def __init__(self, read: ReadLags, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark-history")
        self._lock = Lock()
        self._running: dict[_Key, Future[None]] = {}
        self._known: dict[_Key, RecordedLags] = {}

    def close(self) -> None:
        """Stop the threads after their current read."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def lags(
        self, window: Window, pipeline: str | None = None, wait_s: float = WAIT_S
    ) -> RecordedLags:
        """Return lags at most `FRESH_S` old, or the newest known ones after `wait_s` seconds.

        Args:
            window: The window; it may have ended up to `FRESH_S` ago.
            pipeline: Only this pipeline; None for all, in one read.
            wait_s: Longest time to wait, in seconds.
        """
        key = (window, pipeline)
        with self._lock:
            known = self._known.get(key, RecordedLags())
            if key not in self._running and self._clock() - known.read_at > FRESH_S:
                self._running[key] = self._pool.submit(self._load, key)
            running = self._running.get(key)
        if running is not None:
            wait([running], timeout=wait_s)
        with self._lock:
            return self._known.get(key, RecordedLags())

    def _load(self, key: _Key) -> None:
        found = result_of_thread(key, lambda key: self._read(*key))
        with self._lock:
            if isinstance(found, TidemarkError):
                new = replace(self._known.get(key, RecordedLags()), error=found)
            else:
                new = RecordedLags(lags=found)
            self._known.pop(key, None)
            self._known[key] = replace(new, read_at=self._clock())
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
            del self._running[key]


def highest_lags(
    samples: Iterable[LagSample], window: Window, now: datetime
) -> Sequence[LagSample]:
    """Return the samples to show, oldest first.

    Each step has the samples with the highest lag and with the highest age, so a short peak stays
    visible in a long window. A known value is higher than an unknown one. The newest sample is
    shown, too. Samples of the future, by a wrong clock, are not.
    """
    step = window.step.total_seconds()
    by_step: dict[float, list[LagSample]] = {}
    for sample in samples:
        if now - window.span <= sample.checked_at <= now:
            by_step.setdefault(sample.checked_at.timestamp() // step, []).append(sample)
    shown: dict[datetime, LagSample] = {}
    for each in by_step.values():
        peaks = (max(each, key=_lag), max(each, key=_age))
        shown |= {sample.checked_at: sample for sample in peaks}
    if by_step:
        newest = max(by_step[max(by_step)], key=lambda sample: sample.checked_at)
        shown[newest.checked_at] = newest
    return [shown[at] for at in sorted(shown)]


def _lag(sample: LagSample) -> int:
    return -1 if sample.lag is None else sample.lag


def _age(sample: LagSample) -> tuple[timedelta, int]:
    return timedelta(-1) if sample.lag_time is None else sample.lag_time, _lag(sample)

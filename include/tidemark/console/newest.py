"""The newest values that could be read: shared by requests, and kept while reads fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import Any, Generic, TypeVar

from tidemark.app.adapters import utc_now
from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_of_thread

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a value.

    Attributes:
        name: Description for log lines.
        parts: What the value depends on. It can contain secrets.
    """

    name: str
    parts: Hashable = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest(Generic[V]):
    """The newest value that could be read, and the error of a newer read.

    Attributes:
        value: The value; None before the first.
        read_at: The time at which its read began; None without a value.
        error: The error of the newest ended read; None if it succeeded, or none has ended.
        attempted_at: Monotonic time of the newest attempt, in seconds.
        is_late: Whether a newer read has not ended within the wait.
    """

    value: V | None = None
    read_at: datetime | None = None
    error: TidemarkError | None = None
    attempted_at: float = float("-inf")
    is_late: bool = False

    @property
    def is_stale(self) -> bool:
        """Whether `value` may differ from a current one: an attempt failed, or is late."""
        return self.value is not None and (self.error is not None or self.is_late)

    def required(self) -> V:
        """Return the value.

        Raises:
            TidemarkError: There is no value, because the newest read failed.
            LookupError: The first read has not ended.
        """
        if self.value is not None:
            return self.value
        if self.error is None:
            raise LookupError("the first read has not ended")
        # Requests share the error, and each `raise` would add its frames to it.
        raise self.error.with_traceback(None)


class NewestValues:
    """Reads values in threads of its own and keeps the newest of each key.

    Args:
        fresh_s: Age up to which a value, or an error, is not read again, in seconds.
        kept: Maximum number of keys; the one whose newest read is the oldest is dropped first.
        threads: Number of threads.
        outages: Errors after which the value before is kept. Another error removes the value.
        clock: Returns a monotonic time in seconds.
    """

    def __init__(
        self,
        *,
        fresh_s: float,
        kept: int,
        threads: int,
        outages: tuple[type[TidemarkError], ...] = (TidemarkError,),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fresh_s = fresh_s
        self._kept = kept
        self._outages = outages
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidemark-newest")
        self._lock = Lock()
        self._running: dict[Key, Future[None]] = {}
        self._known: dict[Key, Newest[Any]] = {}

    def close(self) -> None:
        """Stop the threads after their current read."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def get(self, key: Key, read: Callable[[], V], wait_s: float) -> Newest[V]:
        """Return a value at most `fresh_s` old, or the newest known one after `wait_s` seconds.

        Args:
            key: Identifies the value.
            read: Reads the value. Requests of the same key at the same time share a read.
            wait_s: Longest time to wait, in seconds.
        """
        with self._lock:
            known = self._known.get(key, Newest())
            if key not in self._running and self._clock() - known.attempted_at > self._fresh_s:
                self._running[key] = self._pool.submit(self._load, key, read)
            running = self._running.get(key)
        if running is not None:
            wait([running], timeout=wait_s)
        with self._lock:
            return replace(self._known.get(key, Newest()), is_late=key in self._running)

    def _load(self, key: Key, read: Callable[[], Any]) -> None:
        began_at = utc_now()
        found = result_of_thread(key, lambda _: read())
        with self._lock:
            before = self._known.pop(key, Newest())
            if not isinstance(found, TidemarkError):
                new = Newest(value=found, read_at=began_at)
            elif isinstance(found, self._outages):
                new = replace(before, error=found)
            else:
                new = Newest(error=found)
            self._known[key] = replace(new, attempted_at=self._clock())
            if len(self._known) > self._kept:
                del self._known[next(iter(self._known))]
            del self._running[key]

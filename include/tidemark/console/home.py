"""The home that the console shows: its specs, read again after a change, statuses and lags."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from tidemark.app import App
from tidemark.console.observer import StatusObserver
from tidemark.console.recorded_lags import LagHistory, Window
from tidemark.core.ledger import Ledger
from tidemark.core.plan_history import PlanEntry
from tidemark.kafka.errors import KafkaUnreachable
from tidemark.lake.status_history import LagSample, read_lags
from tidemark.pipeline import utc_now
from tidemark.report.status import PipelineStatus
from tidemark.spec.layout import spec_files

RELOAD_S = 60.0
"""Seconds after which connections are read again; a changed spec is read at once."""
UNREACHABLE_S = 15.0
"""After a failure of its brokers, waits for a connection are short for this time, in seconds."""
SHORT_WAIT = 0.25
"""A short wait as a fraction of the usual wait. It is enough for brokers in another region."""
KNOWN_PLANS = 64
"""Maximum number of cached pages of plans; the least recently requested is dropped first."""


class _KnownPlans(NamedTuple):
    """Plans, and the state of the control table from which they were read."""

    ledger: Ledger
    entries: Sequence[PlanEntry]


class Home:
    """The specs, tables and statuses of one home.

    Args:
        load_app: Loads the specs and connections of the home again.
        clock: Returns a monotonic time in seconds.
    """

    def __init__(self, load_app: Callable[[], App], clock: Callable[[], float] = time.monotonic):
        self._load = load_app
        self._clock = clock
        self._lock = Lock()
        self._app: App | None = None
        self._key: object = None
        self._loaded_at = 0.0
        self._unreachable: dict[str, float] = {}
        self._plans: OrderedDict[tuple[str, int, int], _KnownPlans] = OrderedDict()
        self.statuses = StatusObserver(self._status)
        self.history = LagHistory(self._recorded)

    @property
    def app(self) -> App:
        """The app with the current specs."""
        with self._lock:
            now = self._clock()
            if self._app is None or now - self._loaded_at > RELOAD_S or self._key != self._stamp():
                self._app = self._load()
                self._key, self._loaded_at = self._stamp(), now
            return self._app

    def plans(self, pipeline: str, before: int | None, most: int) -> Sequence[PlanEntry]:
        """Return plans of a pipeline, newest first; reads them again after a change of the table.

        Args:
            pipeline: Pipeline name.
            before: Only plans with lower numbers; None for the newest plans.
            most: Maximum number of plans.
        """
        control = self.app.control
        ledger = control.summary(pipeline)
        end = ledger.last_sequence + 1
        end = end if before is None else min(before, end)
        place = (pipeline, max(1, end - most), end)
        with self._lock:
            known = self._plans.get(place)
        # The control table returns the same object until its version changes.
        if known is None or known.ledger is not ledger:
            known = _KnownPlans(ledger, control.plan_history(*place))
        with self._lock:
            self._plans[place] = known
            self._plans.move_to_end(place)
            while len(self._plans) > KNOWN_PLANS:
                self._plans.popitem(last=False)
        return known.entries

    def _stamp(self) -> object:
        """Return a value that changes when a spec is added, removed or written."""
        if self._app is None:
            return None
        stamps = []
        for file in spec_files(self._app.specs_path):
            with suppress(FileNotFoundError):
                found = file.stat()
                stamps.append((file, found.st_mtime_ns, found.st_size))
        return stamps

    def _status(self, pipeline: str) -> PipelineStatus:
        """Return a status. Waits only briefly for brokers that did not answer just before."""
        read = self.app.pipeline(pipeline)
        connection, wait_s = read.spec.connection, read.context.kafka_timeout_s
        since = self._clock() - self._unreachable.get(connection, float("-inf"))
        is_short = since < UNREACHABLE_S
        if wait_s is not None and is_short:
            read = read.with_kafka_timeout(wait_s * SHORT_WAIT)
        status = read.status()
        if status.kafka_error is None:
            self._unreachable.pop(connection, None)
        # A failed short wait does not count: slow brokers would stay unreachable forever.
        elif isinstance(status.kafka_error, KafkaUnreachable) and not is_short:
            self._unreachable[connection] = self._clock()
        return status

    def _recorded(self, window: Window, pipeline: str | None) -> Mapping[str, Sequence[LagSample]]:
        since = utc_now() - window.span
        return read_lags(self.app.layout.status_history, since, window.step, pipeline)

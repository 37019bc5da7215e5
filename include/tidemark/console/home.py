"""The home that the console shows: its specs, read again after a change, statuses and lags."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

from tidemark.app.adapters import utc_now
from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.console.newest import Key, Newest, NewestValues
from tidemark.console.observer import FRESH_S, KAFKA_TIMEOUT_S, StatusObserver
from tidemark.console.recorded_lags import Window
from tidemark.core.ledger import Ledger
from tidemark.core.plan_history import PlanEntry
from tidemark.delta.status_history import LagSample, read_lags
from tidemark.delta.status_table import read_status
from tidemark.kafka.errors import EmbeddedBrokerStopped, KafkaUnavailable
from tidemark.ops.report.cluster import ClusterView, TopicView
from tidemark.ops.report.coverage import KnownWatermarks
from tidemark.ops.report.status import PipelineStatus
from tidemark.spec.layout import spec_files
from tidemark.spec.model import PipelineSpec

RELOAD_S = 60.0
"""Seconds after which connections are read again; a changed spec is read at once."""
OVERDUE_S = 2 * RELOAD_S
"""Age above which a load of specs and connections is reported as overdue, in seconds."""
UNREACHABLE_S = 15.0
"""Time of short waits for a connection after a failure of its brokers, in seconds."""
SHORT_WAIT = 0.25
"""A short wait as a fraction of the usual wait. It is enough for brokers in another region."""
KNOWN_PLANS = 64
"""Maximum number of cached pages of plans; the least recently requested is dropped first."""
RECORDED_FRESH_S = 60.0
"""Age up to which recorded lags and statuses are not read again, in seconds."""
RECORDED_WAIT_S = 3.0
"""Longest time that a page waits for recorded lags and statuses, in seconds."""
KNOWN_LAGS = 64
"""Maximum number of cached charts of recorded lags."""
KAFKA_WAIT_S = 4 * KAFKA_TIMEOUT_S
"""Longest time that a page waits for Kafka, in seconds. A read has several requests."""
KNOWN_TOPICS = 128
"""Maximum number of cached watermarks and pages of topics."""
KNOWN_CLUSTERS = 8
"""Maximum number of cached lists of topics."""
TOPICS = 200
"""Maximum number of topics of a list."""
_KAFKA_OUTAGES = (KafkaUnavailable, EmbeddedBrokerStopped)
"""Errors after which values that were read before may still be current."""

V = TypeVar("V")


class _KnownPlans(NamedTuple):
    """Plans, and the state of the control table from which they were read."""

    ledger: Ledger
    entries: Sequence[PlanEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStatus:
    """The newest row of a pipeline in the status table.

    Attributes:
        topic: Topic; None if the status could not be read.
        lag: Newest known lag, with its time.
        checked_at: Time of the status. It is after the time of the lag if Kafka was unavailable.
        has_alarms: Whether the status has an alarm.
    """

    topic: str | None
    lag: LagSample
    checked_at: datetime
    has_alarms: bool


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
        self._loading = Lock()
        self._app: App | None = None
        self._key: object = None
        self._loaded_at = 0.0
        self._load_began_at: float | None = None
        self._unreachable: dict[str, float] = {}
        self._plans: OrderedDict[tuple[str, int, int], _KnownPlans] = OrderedDict()
        self.statuses = StatusObserver(self._status, self._status_sources)
        self._recorded = NewestValues(
            fresh_s=RECORDED_FRESH_S, kept=KNOWN_LAGS, threads=2, clock=clock
        )
        self._topics, self._clusters = (
            NewestValues(fresh_s=FRESH_S, kept=kept, threads=4, outages=_KAFKA_OUTAGES, clock=clock)
            for kept in (KNOWN_TOPICS, KNOWN_CLUSTERS)
        )

    @property
    def app(self) -> App:
        """The app with the current specs.

        While one thread loads it again, which can take long with a slow store of connections, other
        threads get the app from before. `overdue_load_s` reports a load that does not end.
        """
        with self._lock:
            known, is_old = self._app, self._clock() - self._loaded_at > RELOAD_S
        stamp = _stamp(known)
        if known and not is_old and stamp == self._key:
            return known
        if not self._loading.acquire(blocking=known is None):
            return cast("App", known)
        try:
            if self._app is not known:
                return cast("App", self._app)
            self._load_began_at = self._clock()
            loaded = self._load()
            with self._lock:
                self._app, self._key = loaded, stamp or _stamp(loaded)
                self._loaded_at = self._clock()
            return loaded
        finally:
            self._load_began_at = None
            self._loading.release()

    @property
    def overdue_load_s(self) -> float | None:
        """Age of an overdue load of specs and connections, in seconds; None without such a load."""
        began_at = self._load_began_at
        age = 0.0 if began_at is None else self._clock() - began_at
        return age if age > OVERDUE_S else None

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
        # The control table returns the same object until events of the pipeline change.
        if known is None or known.ledger is not ledger:
            known = _KnownPlans(ledger, control.plan_history(*place))
        with self._lock:
            self._plans[place] = known
            self._plans.move_to_end(place)
            while len(self._plans) > KNOWN_PLANS:
                self._plans.popitem(last=False)
        return known.entries

    # -- the newest values that could be read ------------------------------------------------------

    def lags(
        self, window: Window, pipeline: str | None = None
    ) -> Newest[Mapping[str, Sequence[LagSample]]]:
        """Return the recorded lags of a window, oldest first, of one pipeline or of all."""

        def read() -> Mapping[str, Sequence[LagSample]]:
            since = utc_now() - window.span
            return read_lags(self.app.layout.status_history, since, window.step, pipeline)

        return self._recorded.get(Key("recorded lags", (window, pipeline)), read, RECORDED_WAIT_S)

    def recorded_statuses(self) -> Newest[Mapping[str, RecordedStatus]]:
        """Return the newest rows of the status table, by pipeline."""

        def read() -> Mapping[str, RecordedStatus]:
            rows = read_status(self.app.layout.status_table)
            return {row["pipeline"]: _recorded_status(row) for row in rows}

        return self._recorded.get(Key("recorded statuses"), read, RECORDED_WAIT_S)

    def watermarks(self, pipeline: Pipeline) -> Newest[KnownWatermarks]:
        """Return the watermarks of the topic of a pipeline.

        After a change of the topic, of the connection, or of the incarnation or the partitions of
        the plans, no watermarks from before are returned.
        """
        spec, ledger = pipeline.spec, pipeline.control.summary(pipeline.name)
        parts = (
            _log_source(self.app, spec),
            *(ledger.cluster_id, ledger.topic_id, frozenset(ledger.starts)),
        )
        key = Key(f"watermarks of {spec.name}", parts)
        return _from_kafka(self._topics, key, pipeline.report.coverage.watermarks)

    def cluster(self, connection: str, pattern: str) -> Newest[ClusterView]:
        """Return the cluster of a connection, with the first `TOPICS` topics of a pattern."""
        app = self.app

        def read() -> ClusterView:
            cluster = app.cluster(connection, KAFKA_TIMEOUT_S)
            return cluster.topics(pattern=pattern, most=TOPICS)

        key = Key(f"topics of {connection}", (pattern, _source(app, connection), _readers(app)))
        return _from_kafka(self._clusters, key, read)

    def topic(self, connection: str, topic: str) -> Newest[TopicView]:
        """Return a topic with its settings and pipelines."""
        app = self.app

        def read() -> TopicView:
            return app.cluster(connection, KAFKA_TIMEOUT_S).topic(topic)

        key = Key(f"a topic of {connection}", (topic, _source(app, connection), _readers(app)))
        return _from_kafka(self._topics, key, read)

    def _status_sources(self, pipelines: Collection[str]) -> Mapping[str, Hashable]:
        """Return the source of the log of each pipeline; None without a valid spec."""
        app = self.app
        specs = {name: app.specs.get(name) for name in pipelines}
        return {name: _log_source(app, spec) if spec else None for name, spec in specs.items()}

    def _status(self, pipeline: str) -> PipelineStatus:
        """Return a status. Waits only briefly for brokers that did not answer just before."""
        read = self.app.pipeline(pipeline)
        connection, wait_s = read.spec.connection, read.adapters.kafka_timeout_s
        since = self._clock() - self._unreachable.get(connection, float("-inf"))
        is_short = since < UNREACHABLE_S
        if wait_s is not None and is_short:
            read = Pipeline(replace(read.adapters, kafka_timeout_s=wait_s * SHORT_WAIT))
        status = read.report.status()
        if status.kafka_error is None:
            self._unreachable.pop(connection, None)
        # A failed short wait does not count: slow brokers would stay unreachable forever.
        elif _is_unreachable(status.kafka_error) and not is_short:
            self._unreachable[connection] = self._clock()
        return status


def _is_unreachable(error: Exception) -> bool:
    return isinstance(error, KafkaUnavailable) and bool(error.addresses)


def _source(app: App, connection: str) -> Hashable:
    """Return a connection with its definition, so that another definition is another source."""
    return connection, app.connections.find(connection)


def _log_source(app: App, spec: PipelineSpec) -> Hashable:
    """Return the topic of a pipeline, its isolation level, and the sources of its connections."""
    registry = _source(app, spec.registry) if spec.registry else None
    return spec.topic, spec.isolation_level, _source(app, spec.connection), registry


def _readers(app: App) -> Hashable:
    """Return what a view of a cluster contains of the specs."""
    sources = {spec.connection: _source(app, spec.connection) for spec in app.specs.values()}
    return frozenset(
        (spec.name, spec.topic, sources[spec.connection]) for spec in app.specs.values()
    )


def _from_kafka(values: NewestValues, key: Key, read: Callable[[], V]) -> Newest[V]:
    """Return the newest value that could be read, or an error."""
    found = values.get(key, read, KAFKA_WAIT_S)
    if found.value is None and found.error is None:
        reason = f"no answer within {KAFKA_WAIT_S:g} s"
        return replace(found, error=KafkaUnavailable(operation="the first read", reason=reason))
    return found


def _recorded_status(row: Mapping[str, Any]) -> RecordedStatus:
    seconds = row.get("lag_seconds")
    return RecordedStatus(
        topic=row.get("topic"),
        lag=LagSample(
            checked_at=row.get("lag_checked_at") or row["checked_at"],
            lag=row.get("lag"),
            lag_time=None if seconds is None else timedelta(seconds=seconds),
            state=row.get("state"),
        ),
        checked_at=row["checked_at"],
        has_alarms=bool(row.get("alarms")),
    )


def _stamp(app: App | None) -> object:
    """Return a value that changes when a spec is added, removed or written."""
    if app is None:
        return None
    stamps = []
    for file in spec_files(app.specs_path):
        with suppress(FileNotFoundError):
            found = file.stat()
            stamps.append((file, found.st_mtime_ns, found.st_size))
    return stamps

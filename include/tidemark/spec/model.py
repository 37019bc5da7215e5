"""A pipeline spec: topic, target table, schedule and policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from tidemark.core.errors import InvalidReference
from tidemark.core.watermarks import IsolationLevel
from tidemark.spec.decode import DecodeSpec
from tidemark.spec.ref import PipelineKind, PipelineRef
from tidemark.spec.upsert import UpsertSpec

PIPELINE_NAME = r"[a-z][a-z0-9_]{0,63}"
"""Pattern for the name of a pipeline, which is the name of its spec's file."""
SUITE_NAME = r"[a-z][a-z0-9_]{0,63}"
"""Pattern for the name of a quality suite, which is the name of its file."""


class StartPolicy(StrEnum):
    """Where the first plan of a pipeline begins (S9, as `auto.offset.reset`).

    Partitions that are added later are read from offset 0.
    """

    EARLIEST = "earliest"
    """The low watermark of the first plan."""
    LATEST = "latest"
    """The log end offset of the first plan: only later records are read."""
    TIMESTAMP = "timestamp"
    """The first record at or after `start_at`; without one, the log end offset."""
    NONE = "none"
    """No offset: planning fails until an operator chooses one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRules:
    """Limits of a pipeline that raise alarms; None for no alarm.

    Attributes:
        lag_records: Maximum number of unread offsets.
        lag_time: Longest time that a record may wait unread.
        runway: Shortest time until Kafka deletes an unread record.
        stalled: Longest time without a landing while records are unread.
        quarantined_records: Maximum number of records in quarantine.
        deadline: Longest time from a run's beginning in the queue to its end.
    """

    lag_records: int | None = None
    lag_time: timedelta | None = None
    runway: timedelta | None = None
    stalled: timedelta | None = None
    quarantined_records: int | None = None
    deadline: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """The spec of one pipeline, from its YAML file; docs/reference/pipelines.md explains every key.

    Attributes:
        ref: The table. The name of the live one is unique, `[a-z][a-z0-9_]*`, and names the DAG.
        description: One or two sentences for the DAG's page.
        topic: Kafka topic.
        connection: Airflow connection id of the Kafka cluster.
        target: Table path below the lakehouse, or an absolute path or URI.
        schedule: Cron expression or Airflow preset.
        group: Pipelines of one group share a DAG and its Spark applications; None = a DAG of its
            own.
        start: Where the first plan of the pipeline begins.
        start_at: The moment for `StartPolicy.TIMESTAMP`, else None.
        isolation_level: Isolation level of the reader.
        records_per_run: Maximum number of offsets of a plan over all partitions; None = no limit.
        bytes_per_run: Maximum size of a plan, estimated from the table's rows; None = no limit.
        time_per_run: Maximum duration of a run, estimated from the newest runs; None = no limit.
        catch_up: Whether a run that reached a limit starts the next run at once.
        records_per_task: Maximum number of offsets of a Spark task; longer ranges are split.
        bytes_per_task: Maximum size of a task's file, estimated from the table's rows.
        records_per_chunk: Default maximum number of offsets of one plan of a backfill.
        records_per_backfill: Maximum number of offsets of a backfill without `--yes`.
        decode: Spec of the typed table; None = no typed table.
        suite: Quality suite's file name in include/expectations without its ending; None = only
            the built-in checks.
        alarms: Limits that raise alarms.
        retries: Number of retries of a DAG task after a retryable error.
        tags: Tags of the DAG.
        spark: Spark settings, which override Tidemark's own.
    """

    ref: PipelineRef
    topic: str
    connection: str
    target: str
    schedule: str
    group: str | None = None
    description: str = ""
    start: StartPolicy = StartPolicy.NONE
    start_at: datetime | None = None
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    records_per_run: int | None = None
    bytes_per_run: int | None = None
    time_per_run: timedelta | None = None
    catch_up: bool = False
    records_per_task: int = 1_000_000
    bytes_per_task: int = 256 * 2**20
    records_per_chunk: int = 10_000_000
    records_per_backfill: int = 100_000_000
    decode: DecodeSpec | None = None
    suite: str | None = None
    alarms: AlarmRules = AlarmRules()
    retries: int = 3
    tags: tuple[str, ...] = ()
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The text of `ref`, under which plans are recorded."""
        return str(self.ref)

    @property
    def origin(self) -> str:
        """Name of the live pipeline: this one, or the one that it decodes."""
        return self.ref.name

    @property
    def reads_kafka(self) -> bool:
        """Whether the table contains records as Kafka has them."""
        return self.ref.kind is PipelineKind.LIVE

    @property
    def targets(self) -> Mapping[str, str]:
        """Targets of all tables, by their keys in the spec."""
        targets = {"target": self.target}
        if self.decode:
            targets["decode.target"] = self.decode.target
            targets["decode.target, with _quarantine"] = self.decode.quarantine_target
            if self.decode.upsert:
                targets["decode.upsert.target"] = self.decode.upsert.target
        return targets

    @property
    def registry(self) -> str | None:
        """Connection id of the schema registry; None if no key or value has a schema id."""
        return self.decode.registry if self.decode and self.decode.framed_parts else None

    def decoding(self) -> DecodeSpec:
        """Return the section `decode`; raises InvalidReference without one."""
        if self.decode is None:
            raise InvalidReference.without_table(self.origin, kind="typed", section="decode")
        return self.decode

    def upsert(self) -> UpsertSpec:
        """Return the section `decode.upsert`; raises InvalidReference without one."""
        if self.decode is None or self.decode.upsert is None:
            raise InvalidReference.without_table(
                self.origin, kind="upsert", section="decode.upsert"
            )
        return self.decode.upsert

    @property
    def has_upsert(self) -> bool:
        """Whether the spec defines an upsert table."""
        return self.decode is not None and self.decode.upsert is not None

    def typed_spec(self) -> PipelineSpec:
        """Return the pipeline of the typed table; raises InvalidReference without one."""
        return self._of_kind(PipelineKind.TYPED, self.decoding().target)

    def upsert_spec(self) -> PipelineSpec:
        """Return the pipeline of the upsert table; raises InvalidReference without one."""
        return self._of_kind(PipelineKind.UPSERT, self.upsert().target)

    def _of_kind(self, kind: PipelineKind, target: str) -> PipelineSpec:
        return replace(self, ref=self.ref.of_kind(kind), target=target, group=None)

    @property
    def dag_id(self) -> str:
        """The Airflow DAG that runs the pipeline: its group's, or its own."""
        return f"tidemark_group_{self.group}" if self.group else f"tidemark_{self.name}"

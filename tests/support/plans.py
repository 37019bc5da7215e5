"""Values of many tests: specs, watermarks, plans, and pipelines in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tests.support.memory import MemoryControlTable, MemoryKafka, MemoryTable
from tests.support.services import NOW, Services
from tidemark.bronze.ingest.draft import RequestedOffsets
from tidemark.bronze.ingest.protocols import ControlTable
from tidemark.core.events import ControlEvent
from tidemark.core.ledger import CheckedLedger
from tidemark.core.offsets import Span, spans_by_partition
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.record import LogRecord, TimestampType
from tidemark.core.table_state import TableState
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.spec.model import PipelineSpec, StartPolicy
from tidemark.spec.ref import PipelineRef

UNCOMPARED = TableState(transactions={}, restores=())
"""The state that a table has before it exists. No table is older."""


def no_owner(_uri: str) -> None:
    """Return None, as for a location without a table."""


def make_spec(**changes: Any) -> PipelineSpec:
    """Return a spec over topic `events` that starts at the earliest offset."""
    spec = PipelineSpec(
        ref=PipelineRef("events"),
        topic="events",
        connection="kafka_default",
        target="bronze/events",
        schedule="@hourly",
        start=StartPolicy.EARLIEST,
    )
    return replace(spec, **changes)


def make_watermarks(partitions: Mapping[int, tuple[int, int]], **changes: Any) -> TopicWatermarks:
    """Return watermarks of topic `events` from `{partition: (low, end)}`."""
    watermarks = TopicWatermarks(
        cluster_id="memory",
        topic="events",
        topic_id="id-1",
        isolation_level=IsolationLevel.READ_COMMITTED,
        partitions={p: Watermarks(low=low, end=end) for p, (low, end) in partitions.items()},
    )
    return replace(watermarks, **changes)


def make_record(
    value: bytes | None, key: bytes | None = b"k", offset: int = 0, *, partition: int = 0
) -> LogRecord:
    """Return a record without headers."""
    return LogRecord(
        partition=partition,
        offset=offset,
        key=key,
        value=value,
        headers=(),
        timestamp_ms=0,
        timestamp_type=TimestampType.CREATE,
    )


def make_range(partition: int, start: int, end: int) -> PlannedRange:
    """Return a planned range with its own bounds as watermarks."""
    return PlannedRange.without_watermarks(partition, Span(start, end))


def make_plan(*ranges: tuple[int, int, int], sequence: int = 1, **changes: Any) -> Plan:
    """Return a plan of pipeline `events` over `(partition, start, end)` ranges."""
    plan = Plan(
        pipeline="events",
        sequence=sequence,
        kind=PlanKind.LIVE,
        epoch=0,
        cluster_id="memory",
        topic="events",
        topic_id="id-1",
        isolation_level=IsolationLevel.READ_COMMITTED,
        origin=RunOrigin(f"test:{sequence}"),
        ranges=tuple(make_range(*some) for some in ranges),
    )
    return replace(plan, **changes)


def append_events(
    control: ControlTable, pipeline: str, *events: ControlEvent, at: datetime = NOW
) -> CheckedLedger:
    """Append events without a comparison with a data table; return the new ledger."""
    control.append(CheckedLedger(control.ledger(pipeline)), events, at)
    return CheckedLedger(control.ledger(pipeline))


@dataclass
class MemoryPipeline(Services):
    """One pipeline over a topic, a control table and a data table in memory."""

    spec: PipelineSpec = field(default_factory=make_spec)
    partitions: int = 2
    kafka: MemoryKafka = field(default_factory=MemoryKafka)
    control: MemoryControlTable = field(default_factory=MemoryControlTable)
    table: MemoryTable = None  # type: ignore[assignment]  # made over `kafka` if not given

    def __post_init__(self) -> None:
        self.table = self.table or MemoryTable(kafka=self.kafka)
        if self.spec.topic not in self.kafka.topics:
            self.kafka.create(self.spec.topic, self.partitions, "id-1")

    def produce(self, partition: int, count: int, timestamp_ms: int = 0) -> None:
        """Append records to the topic."""
        self.kafka.produce(self.spec.topic, partition, count, timestamp_ms)

    @property
    def watermarks(self) -> MemoryKafka:
        """Reads watermarks of the log."""
        return self.kafka

    @property
    def log_reader(self) -> MemoryKafka:
        """Reads records of the log."""
        return self.kafka

    @property
    def sink(self) -> MemoryTable:
        """Lands plans."""
        return self.table

    def plan(self, requested_by: str) -> Plan:
        """Make a plan; some offsets must be unread."""
        plan = self.planner.plan(requested_by).plan
        assert plan is not None
        return plan

    def run(self, requested_by: str) -> Plan | None:
        """Plan unread offsets, and ingest the plan if there is one."""
        plan = self.planner.plan(requested_by).plan
        if plan:
            self.ingest.execute(plan.sequence)
        return plan

    def landed_identities(self) -> list[tuple[str, int, int]]:
        """Return (topic id, partition, offset) of every row, sorted, with duplicates."""
        return sorted(row[:3] for row in self.table.rows)

    def visible_identities(self) -> list[tuple[str, int, int]]:
        """Return (topic id, partition, offset) of every visible record, sorted."""
        topic = self.spec.topic
        return sorted(
            (self.kafka.topic_ids[topic], partition, offset)
            for partition, log in self.kafka.topics[topic].items()
            for offset in log.records
        )


def around_removal(
    pipeline: MemoryPipeline,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Call functions around the next removal of rows."""
    remove_rows = pipeline.table.remove_rows

    def removal(plan: Plan, epoch: int, seen: TableState) -> tuple[int, int]:
        pipeline.table.remove_rows = remove_rows  # type: ignore[method-assign]
        before()
        done = remove_rows(plan, epoch, seen)
        after()
        return done

    pipeline.table.remove_rows = removal  # type: ignore[method-assign]


def land_and_delete_before_watermarks(pipeline: MemoryPipeline) -> None:
    """Before the next read of watermarks, another run lands all records, and Kafka deletes them."""
    kafka = pipeline.kafka
    read = kafka.topic_watermarks

    def after_other_run(topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        kafka.topic_watermarks = read  # type: ignore[method-assign]
        pipeline.run("other")
        for partition, log in kafka.topics[topic].items():
            kafka.delete_records(topic, partition, log.end)
        return read(topic, isolation_level)

    kafka.topic_watermarks = after_other_run  # type: ignore[method-assign]


def wanted(*ranges: tuple[int, int, int]) -> RequestedOffsets:
    """Return requested offsets from `(partition, start, end)`."""
    return RequestedOffsets(
        spans=spans_by_partition((p, Span(start, end)) for p, start, end in ranges)
    )


@dataclass
class _TableWithConcurrentRun(MemoryTable):
    """A table on which another run lands before the next read of its state."""

    other: MemoryPipeline | None = None

    def state(
        self, pipeline: str, app_ids: Collection[str], *, restores_since: int | None = None
    ) -> TableState:
        other, self.other = self.other, None
        if other is not None:
            other.run("other")
        return super().state(pipeline, app_ids, restores_since=restores_since)


def make_pipeline_with_concurrent_run() -> MemoryPipeline:
    """Return a pipeline with two records; another run lands them during the next use."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.table = table = _TableWithConcurrentRun(kafka=pipeline.kafka)
    table.other = replace(pipeline)
    return pipeline


def bronze_row(plan: Plan, record: LogRecord, now: datetime) -> dict[str, object]:
    """Return the row of a bronze table for a record of a plan."""
    return {
        "key": record.key,
        "value": record.value,
        "headers": [{"key": key, "value": value} for key, value in record.headers or ()],
        "topic": plan.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms * 1000,
        "timestamp_type": int(record.timestamp_type),
        "topic_id": plan.topic_id,
        "plan_sequence": plan.sequence,
        "ingested_at": now,
    }

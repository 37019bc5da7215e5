"""The world of the model: in-memory adapters, and the truth about every offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar

from tests.support.memory import (
    MemoryControlTable,
    MemoryKafka,
    MemoryPartition,
    MemoryRow,
    MemoryTable,
)
from tests.support.plans import MemoryPipeline, make_spec
from tidemark.core.plan import Plan
from tidemark.core.table_state import FENCED_VERSION, TableSize, TableState
from tidemark.core.watermarks import IsolationLevel
from tidemark.delta.errors import EngineFailed, TransactionConflict
from tidemark.spec.model import PipelineSpec

_T = TypeVar("_T")


class Fate(StrEnum):
    """State of an offset."""

    RECORD = "record"
    """A readable record, or one that retention deleted."""
    OPEN = "open"
    """A record of an open transaction."""
    GAP = "gap"
    """A marker, or a record of an aborted transaction."""
    COMPACTED = "compacted"
    """A record that compaction removed."""


@dataclass
class Truth:
    """One partition of one incarnation of the topic.

    Attributes:
        fates: State of each offset, from offset 0.
        low: The low watermark.
        open: Offsets of each open transaction.
    """

    fates: list[Fate] = field(default_factory=list)
    low: int = 0
    open: dict[str, list[int]] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        return min((o for some in self.open.values() for o in some), default=len(self.fates))


@dataclass
class ModelKafka(MemoryKafka):
    """Kafka with transactions, compaction and retention, and the truth about its logs.

    Attributes:
        truth: Partitions by topic id and number.
    """

    truth: dict[tuple[str, int], Truth] = field(default_factory=dict)

    def create(self, topic: str, partitions: int, topic_id: str) -> None:
        super().create(topic, partitions, topic_id)
        for number in range(partitions):
            self.truth[topic_id, number] = Truth()

    def add_partition(self, topic: str) -> None:
        number = len(self.topics[topic])
        self.topics[topic][number] = MemoryPartition()
        self.truth[self.topic_ids[topic], number] = Truth()

    def produce(self, topic: str, partition: int, count: int, timestamp_ms: int = 0) -> None:
        super().produce(topic, partition, count, timestamp_ms)
        self._of(topic, partition).fates += [Fate.RECORD] * count
        self._settle(topic, partition)

    def add_gaps(self, topic: str, partition: int, count: int) -> None:
        super().add_gaps(topic, partition, count)
        self._of(topic, partition).fates += [Fate.GAP] * count
        self._settle(topic, partition)

    def produce_in_transaction(self, topic: str, partition: int, name: str, count: int) -> None:
        """Append records of a transaction; the first one starts it."""
        truth = self._of(topic, partition)
        begin = len(truth.fates)
        truth.open.setdefault(name, []).extend(range(begin, begin + count))
        truth.fates += [Fate.OPEN] * count
        self.topics[topic][partition].end += count
        self._settle(topic, partition)

    def end_transaction(self, topic: str, partition: int, name: str, commit: bool) -> None:
        """Append the marker, and make the records visible or gaps."""
        truth = self._of(topic, partition)
        log = self.topics[topic][partition]
        for offset in truth.open.pop(name):
            truth.fates[offset] = Fate.RECORD if commit else Fate.GAP
            if commit:
                log.records[offset] = 0
        log.records = dict(sorted(log.records.items()))
        truth.fates.append(Fate.GAP)
        log.end += 1
        self._settle(topic, partition)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        super().delete_records(topic, partition, before)
        self._of(topic, partition).low = before

    def compact(self, topic: str, partition: int, offset: int) -> None:
        """Remove one record, as compaction does with old values of a key."""
        self.topics[topic][partition].records.pop(offset, None)
        truth = self._of(topic, partition)
        if truth.fates[offset] is Fate.RECORD:
            truth.fates[offset] = Fate.COMPACTED

    def _of(self, topic: str, partition: int) -> Truth:
        return self.truth[self.topic_ids[topic], partition]

    def _settle(self, topic: str, partition: int) -> None:
        log, truth = self.topics[topic][partition], self._of(topic, partition)
        log.stable = truth.stable if truth.open else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """Records of a plan that the engine read.

    Attributes:
        topic_id: The incarnation that it read.
        rows: The rows of the table, with the plan's incarnation.
    """

    topic_id: str
    rows: tuple[MemoryRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedFence:
    """A started fence of whole chains.

    Attributes:
        version: The version that it starts from.
        app_ids: The chains to fence.
        requested_by: The operator's command.
    """

    version: int
    app_ids: tuple[str, ...]
    requested_by: str


@dataclass
class ModelTable(MemoryTable):
    """Data table whose writers perform steps separately, as Delta's optimistic transactions do.

    A writer reads Kafka, starts from a version, and commits. A commit of the same transaction id in
    between is a conflict; other commits are not.

    Source: Delta Lake, "Concurrency control" and "Idempotent table writes".

    Attributes:
        foreign: Rows that were read from another incarnation than the plan's.
        missing: Offsets of partition 0 that the engine does not read in its first plan.
    """

    foreign: list[MemoryRow] = field(default_factory=list)
    missing: tuple[int, ...] = ()

    def begin(self, plan: Plan) -> int | None:
        """Return the version that a commit starts from; None if its transaction is stale."""
        if self.transaction_version(plan.app_id) >= plan.sequence:
            return None
        return len(self.commits)

    def fetch(self, plan: Plan) -> FetchedRecords:
        """Return the records of a plan and the incarnation that they were read from."""
        rows = [
            row
            for row in self.read(plan)
            if plan.sequence > 1 or row[1] != 0 or row[2] not in self.missing
        ]
        return FetchedRecords(topic_id=self.kafka.topic_ids[plan.topic], rows=tuple(rows))

    def read(self, plan: Plan) -> list[MemoryRow]:
        """Return rows as Spark's batch reader does; it fails only outside the log."""
        if self.kafka.topics.get(plan.topic) is None:
            raise EngineFailed(operation="reading", reason="UnknownTopicOrPartitionException")
        for planned in plan.ranges:
            log = self.kafka.topics[plan.topic].get(planned.partition)
            if log is None or planned.start < log.low or planned.end > log.end:
                raise EngineFailed(operation="reading", reason="OffsetOutOfRangeException")
        return [row for row in super().read(plan) if row[2] < self._reach(plan, row[1])]

    def finish(self, plan: Plan, start_version: int, fetched: FetchedRecords) -> None:
        if self._moved({plan.app_id}, start_version):
            raise TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)
        self.add(plan, fetched.rows)
        if fetched.topic_id != plan.topic_id:
            self.foreign += fetched.rows

    def size(self) -> TableSize:
        """Return a constant, so that states do not differ by size."""
        return TableSize(records=0, bytes=0)

    def write(  # type: ignore[override]  # the files of the model
        self, plan: Plan, _: int
    ) -> FetchedRecords:
        return self.fetch(plan)

    def append(  # type: ignore[override]
        self, plan: Plan, files: FetchedRecords, _: TableState
    ) -> None:
        start_version = self.begin(plan)
        if start_version is not None:
            self.finish(plan, start_version, files)

    def begin_fence(self, plan: Plan) -> int | None:
        """Return the version that a fence starts from; None if the plan is fenced."""
        return self.begin(plan)

    def finish_fence(self, plan: Plan, start_version: int) -> None:
        if self._moved({plan.app_id}, start_version):
            raise TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)
        self.commit(plan.app_id, plan.sequence)

    def fence(self, plan: Plan, _: TableState) -> None:
        start_version = self.begin_fence(plan)
        if start_version is not None:
            self.finish_fence(plan, start_version)

    def begin_fence_chains(
        self, pipeline: str, app_ids: Collection[str], requested_by: str
    ) -> StartedFence | None:
        self.prepare(pipeline)
        remaining = tuple(a for a in app_ids if self.transaction_version(a) < FENCED_VERSION)
        if not remaining:
            return None
        return StartedFence(version=len(self.commits), app_ids=remaining, requested_by=requested_by)

    def finish_fence_chains(self, pipeline: str, started_fence: StartedFence) -> int:
        if self._moved(started_fence.app_ids, started_fence.version):
            raise TransactionConflict(pipeline=pipeline, sequence=FENCED_VERSION)
        self.commit_fence(started_fence.app_ids, started_fence.requested_by)
        return len(self.commits)

    def fence_chains(self, pipeline: str, app_ids: Collection[str], requested_by: str) -> int:
        """Perform all steps at once."""
        started_fence = self.begin_fence_chains(pipeline, app_ids, requested_by)
        if started_fence is None:
            raise TransactionConflict(pipeline=pipeline, sequence=FENCED_VERSION)
        return self.finish_fence_chains(pipeline, started_fence)

    def differs_from_commits(self, since: int) -> bool:
        """Return whether RESTOREs after a version changed the rows."""
        rows = Counter(self.contents[since - 1] if since else ())
        restored = {restore.at for restore in self.restores}
        for number in range(since + 1, len(self.contents) + 1):
            if number not in restored:
                rows.update(self.contents[number - 1])
                rows.subtract(self.contents[number - 2] if number > 1 else ())
        return +rows != Counter(self.rows)

    def _moved(self, app_ids: Collection[str], start_version: int) -> bool:
        return any(app_id in app_ids for app_id, _, _ in self.commits[start_version:])

    def _reach(self, plan: Plan, partition: int) -> int:
        log = self.kafka.topics[plan.topic][partition]
        if plan.isolation_level is IsolationLevel.READ_COMMITTED and log.stable is not None:
            return log.stable
        return log.end


@dataclass
class World:
    """Kafka, the control table and the data table."""

    spec: PipelineSpec
    kafka: ModelKafka
    control: MemoryControlTable
    table: ModelTable

    @property
    def pipeline(self) -> MemoryPipeline:
        """Return the services over this world, without interleaving and failures."""
        return MemoryPipeline(
            spec=self.spec, kafka=self.kafka, control=self.control, table=self.table
        )

    @property
    def key(self) -> str:
        """Return a text that is equal for equal worlds."""
        return repr((self.kafka, self.control.rows, self.control.newest, self.table))

    @property
    def is_disturbed(self) -> bool:
        """Return whether RESTOREs changed the table's rows after the newest repair."""
        epochs = [row["table_version"] for row in self.control.rows if row["event"] == "new_epoch"]
        return self.table.differs_from_commits(since=max(epochs, default=0))

    def fork(self) -> World:
        """Return an independent copy."""
        return _fork(self, {})


def make_world(
    records: Sequence[int] = (2, 1),
    *,
    table: type[ModelTable] = ModelTable,
    control: type[MemoryControlTable] = MemoryControlTable,
    **spec: Any,
) -> World:
    """Return a pipeline over a topic with these numbers of records, and no event."""
    kafka = ModelKafka()
    pipeline_spec = make_spec(**spec)
    kafka.create(pipeline_spec.topic, len(records), "id-1")
    for partition, count in enumerate(records):
        kafka.produce(pipeline_spec.topic, partition, count)
    return World(spec=pipeline_spec, kafka=kafka, control=control(), table=table(kafka=kafka))


def _fork(value: _T, memo: dict[int, Any]) -> _T:
    """A deep copy of what can change; frozen values, tuples and functions are shared."""
    if id(value) in memo:
        return memo[id(value)]
    copy: Any
    if isinstance(value, list):
        copy = [_fork(item, memo) for item in value]
    elif isinstance(value, dict):
        copy = {key: _fork(item, memo) for key, item in value.items()}
    elif is_dataclass(value) and not _is_frozen(value):
        copy = object.__new__(type(value))
        memo[id(value)] = copy
        for each in fields(value):
            object.__setattr__(copy, each.name, _fork(getattr(value, each.name), memo))
    else:
        return value
    memo[id(value)] = copy
    return copy


def _is_frozen(value: Any) -> bool:
    return bool(value.__dataclass_params__.frozen)

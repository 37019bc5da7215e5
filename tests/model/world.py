"""The world of the model: in-memory adapters, and a record of what is true that they do not see."""

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
from tidemark.core.table_state import FENCED_VERSION, TableSize
from tidemark.core.watermarks import IsolationLevel
from tidemark.lake.errors import EngineFailed, TransactionConflict
from tidemark.spec.model import PipelineSpec

_T = TypeVar("_T")


class Fate(StrEnum):
    """What an offset is, for whoever knows everything."""

    RECORD = "record"
    """A record that a reader sees, or saw until retention took it."""
    OPEN = "open"
    """A record of a transaction that nobody knows the end of yet."""
    HOLE = "gap"
    """Nothing: a marker, or a record of an aborted transaction."""
    COMPACTED = "compacted"
    """A record once; who comes late sees nothing."""


@dataclass
class Truth:
    """One partition of one incarnation of the topic, told by what was done to it.

    Attributes:
        fates: What each offset is, from offset 0.
        low: Offsets below it are deleted.
        open: Offsets of each open transaction.
    """

    fates: list[Fate] = field(default_factory=list)
    low: int = 0
    open: dict[str, list[int]] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        """Last stable offset."""
        return min((o for some in self.open.values() for o in some), default=len(self.fates))


@dataclass
class ModelKafka(MemoryKafka):
    """Kafka with transactions, compaction and retention; keeps the truth beside the logs.

    Attributes:
        truth: By topic id and partition.
    """

    truth: dict[tuple[str, int], Truth] = field(default_factory=dict)

    def create(self, topic: str, partitions: int, topic_id: str) -> None:
        """As `MemoryKafka.create`."""
        super().create(topic, partitions, topic_id)
        for number in range(partitions):
            self.truth[topic_id, number] = Truth()

    def add_partition(self, topic: str) -> None:
        """One more partition."""
        number = len(self.topics[topic])
        self.topics[topic][number] = MemoryPartition()
        self.truth[self.topic_ids[topic], number] = Truth()

    def produce(self, topic: str, partition: int, count: int, timestamp_ms: int = 0) -> None:
        """As `MemoryKafka.produce`."""
        super().produce(topic, partition, count, timestamp_ms)
        self._of(topic, partition).fates += [Fate.RECORD] * count
        self._settle(topic, partition)

    def add_gaps(self, topic: str, partition: int, count: int) -> None:
        """As `MemoryKafka.add_gaps`."""
        super().add_gaps(topic, partition, count)
        self._of(topic, partition).fates += [Fate.HOLE] * count
        self._settle(topic, partition)

    def produce_in_transaction(self, topic: str, partition: int, name: str, count: int) -> None:
        """Append records of a transaction, which begins with the first."""
        truth = self._of(topic, partition)
        begin = len(truth.fates)
        truth.open.setdefault(name, []).extend(range(begin, begin + count))
        truth.fates += [Fate.OPEN] * count
        self.topics[topic][partition].end += count
        self._settle(topic, partition)

    def end_transaction(self, topic: str, partition: int, name: str, commit: bool) -> None:
        """Write the marker: its records are records now, or gaps."""
        truth = self._of(topic, partition)
        log = self.topics[topic][partition]
        for offset in truth.open.pop(name):
            truth.fates[offset] = Fate.RECORD if commit else Fate.HOLE
            if commit:
                log.records[offset] = 0
        log.records = dict(sorted(log.records.items()))
        truth.fates.append(Fate.HOLE)
        log.end += 1
        self._settle(topic, partition)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """As `MemoryKafka.delete_records`."""
        super().delete_records(topic, partition, before)
        self._of(topic, partition).low = before

    def compact(self, topic: str, partition: int, offset: int) -> None:
        """Take one record away, as compaction does with old values of a key."""
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
class Fetched:
    """What the engine read of a plan.

    Attributes:
        topic_id: The incarnation that it really read.
        rows: As they will be in the table: they claim the plan's incarnation.
    """

    topic_id: str
    rows: tuple[MemoryRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBegun:
    """A fence of whole chains, on its way.

    Attributes:
        version: The version that it starts from.
        app_ids: What is left to fence.
    """

    version: int
    app_ids: tuple[str, ...]


@dataclass
class ModelTable(MemoryTable):
    """A data table whose writers take their steps apart, as Delta's optimistic transactions do.

    A writer reads Kafka, begins on a version, and commits; a commit in between of the same
    transaction id is a conflict, others are not.
    Source: Delta Lake, "Concurrency control" and "Idempotent table writes".

    Attributes:
        foreign: Rows that were read from another incarnation than they claim.
        missing: Offsets of partition 0 that the engine does not read in its first plan.
    """

    foreign: list[MemoryRow] = field(default_factory=list)
    missing: tuple[int, ...] = ()

    def begin(self, plan: Plan) -> int | None:
        """The version that a commit starts from; None if its transaction is stale: skipped."""
        if self.transaction_version(plan.app_id) >= plan.sequence:
            return None
        return len(self.commits)

    def fetch(self, plan: Plan) -> Fetched:
        """What the engine reads, and from which incarnation of the topic."""
        rows = [
            row
            for row in self.read(plan)
            if plan.sequence > 1 or row[1] != 0 or row[2] not in self.missing
        ]
        return Fetched(topic_id=self.kafka.topic_ids[plan.topic], rows=tuple(rows))

    def read(self, plan: Plan) -> list[MemoryRow]:
        """As Spark's batch reader: fails outside the log, and is silent about all else."""
        if self.kafka.topics.get(plan.topic) is None:
            raise EngineFailed(operation="reading", reason="UnknownTopicOrPartitionException")
        for planned in plan.ranges:
            log = self.kafka.topics[plan.topic].get(planned.partition)
            if log is None or planned.start < log.low or planned.end > log.end:
                raise EngineFailed(operation="reading", reason="OffsetOutOfRangeException")
        return [row for row in super().read(plan) if row[2] < self._reach(plan, row[1])]

    def finish(self, plan: Plan, began: int, fetched: Fetched) -> None:
        """Commit what was read."""
        if self._moved({plan.app_id}, began):
            raise TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)
        self.add(plan, fetched.rows)
        if fetched.topic_id != plan.topic_id:
            self.foreign += fetched.rows

    def size(self) -> TableSize:
        """Nothing that a program could tell states apart by."""
        return TableSize(records=0, bytes=0)

    def write(  # type: ignore[override]  # the files of the model
        self, plan: Plan, _: int
    ) -> Fetched:
        """As `Sink.write`."""
        return self.fetch(plan)

    def append(self, plan: Plan, files: Fetched) -> None:  # type: ignore[override]
        """As `DataTable.append`, all steps in one."""
        began = self.begin(plan)
        if began is not None:
            self.finish(plan, began, files)

    def begin_fence(self, plan: Plan) -> int | None:
        """The version that a fence starts from; None if there is nothing left to fence."""
        return self.begin(plan)

    def finish_fence(self, plan: Plan, began: int) -> None:
        """Commit the fence."""
        if self._moved({plan.app_id}, began):
            raise TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)
        self.commit(plan.app_id, plan.sequence)

    def fence(self, plan: Plan) -> None:
        """All steps in one."""
        began = self.begin_fence(plan)
        if began is not None:
            self.finish_fence(plan, began)

    def begin_fence_chains(self, pipeline: str, app_ids: Collection[str]) -> FenceBegun | None:
        """As `begin_fence`, for whole chains."""
        self.prepare(pipeline)
        left = tuple(a for a in app_ids if self.transaction_version(a) < FENCED_VERSION)
        return FenceBegun(version=len(self.commits), app_ids=left) if left else None

    def finish_fence_chains(self, pipeline: str, begun: FenceBegun) -> int:
        """Commit the fence of whole chains."""
        if self._moved(begun.app_ids, begun.version):
            raise TransactionConflict(pipeline=pipeline, sequence=FENCED_VERSION)
        for app_id in begun.app_ids:
            self.commit(app_id, FENCED_VERSION)
        return len(self.commits)

    def version(self) -> int:
        """The newest version."""
        return len(self.commits)

    def fence_chains(self, pipeline: str, app_ids: Collection[str]) -> int:
        """All steps in one."""
        begun = self.begin_fence_chains(pipeline, app_ids)
        return self.finish_fence_chains(pipeline, begun) if begun else self.version()

    def differs_from_commits(self, since: int) -> bool:
        """Whether RESTOREs after a version made the rows others than the commits after it did."""
        rows = Counter(self.contents[since - 1] if since else ())
        restored = {restore.at for restore in self.restores}
        for number in range(since + 1, len(self.contents) + 1):
            if number not in restored:
                rows.update(self.contents[number - 1])
                rows.subtract(self.contents[number - 2] if number > 1 else ())
        return +rows != Counter(self.rows)

    def _moved(self, app_ids: Collection[str], began: int) -> bool:
        return any(app_id in app_ids for app_id, _, _ in self.commits[began:])

    def _reach(self, plan: Plan, partition: int) -> int:
        log = self.kafka.topics[plan.topic][partition]
        if plan.isolation_level is IsolationLevel.READ_COMMITTED and log.stable is not None:
            return log.stable
        return log.end


@dataclass
class World:
    """All there is: Kafka, the control table, the data table."""

    spec: PipelineSpec
    kafka: ModelKafka
    control: MemoryControlTable
    table: ModelTable

    @property
    def pipeline(self) -> MemoryPipeline:
        """The services over this world, each call at once and without failures."""
        return MemoryPipeline(
            spec=self.spec, kafka=self.kafka, control=self.control, table=self.table
        )

    @property
    def key(self) -> str:
        """Equal for equal worlds."""
        return repr((self.kafka, self.control.rows, self.control.newest, self.table))

    @property
    def is_disturbed(self) -> bool:
        """Whether RESTOREs changed the table's rows and no repair has followed them yet."""
        epochs = [row["table_version"] for row in self.control.rows if row["event"] == "new_epoch"]
        return self.table.differs_from_commits(since=max(epochs, default=0))

    def fork(self) -> World:
        """A copy that changes apart from this one."""
        return _fork(self, {})


def make_world(
    records: Sequence[int] = (2, 1),
    *,
    table: type[ModelTable] = ModelTable,
    control: type[MemoryControlTable] = MemoryControlTable,
    **spec: Any,
) -> World:
    """A pipeline over a topic with so many records in each partition, and nothing done yet."""
    kafka = ModelKafka()
    made = make_spec(**spec)
    kafka.create(made.topic, len(records), "id-1")
    for partition, count in enumerate(records):
        kafka.produce(made.topic, partition, count)
    return World(spec=made, kafka=kafka, control=control(), table=table(kafka=kafka))


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

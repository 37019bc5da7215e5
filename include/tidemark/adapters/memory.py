"""In-memory adapters with the behaviour of the real ones, and failures that can be injected.

The behaviour suites in tests/ run over these and over the real adapters alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tidemark.core.events import ControlEvent, Row, decode, encode
from tidemark.core.ledger import Ledger
from tidemark.core.marks import IsolationLevel, Marks, TopicMarks
from tidemark.core.plan import Landing, Plan
from tidemark.core.table import TableState
from tidemark.errors import ControlConflict, ForeignCommit, TopicMissing


@dataclass
class MemoryPartition:
    """One partition's log: records by offset, and where it begins and ends.

    Attributes:
        records: Timestamp in ms by offset; an offset without a record is a hole.
        low: Low-water mark.
        end: High-water mark.
        stable: Last stable offset; the high-water mark if None.
    """

    records: dict[int, int] = field(default_factory=dict)
    low: int = 0
    end: int = 0
    stable: int | None = None


@dataclass
class MemoryKafka:
    """A cluster of one topic's worth of logs, and the `MarkReader` over it."""

    cluster_id: str = "memory"
    topic_ids: dict[str, str] = field(default_factory=dict)
    topics: dict[str, dict[int, MemoryPartition]] = field(default_factory=dict)

    def create(self, topic: str, partitions: int, topic_id: str) -> None:
        """Make a topic, or make it again under a new id."""
        self.topic_ids[topic] = topic_id
        self.topics[topic] = {number: MemoryPartition() for number in range(partitions)}

    def produce(self, topic: str, partition: int, count: int, timestamp_ms: int = 0) -> None:
        """Append records."""
        log = self.topics[topic][partition]
        for offset in range(log.end, log.end + count):
            log.records[offset] = timestamp_ms
        log.end += count

    def add_holes(self, topic: str, partition: int, count: int) -> None:
        """Append offsets that no reader sees, such as transaction markers."""
        self.topics[topic][partition].end += count

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the low-water mark."""
        log = self.topics[topic][partition]
        log.low = before
        log.records = {offset: ts for offset, ts in log.records.items() if offset >= before}

    def topic_marks(self, topic: str, isolation_level: IsolationLevel) -> TopicMarks:
        """As `MarkReader.topic_marks`."""
        return TopicMarks(
            cluster_id=self.cluster_id,
            topic=topic,
            topic_id=self._topic_id(topic),
            isolation_level=isolation_level,
            partitions={
                number: Marks(low=log.low, end=_end(log, isolation_level))
                for number, log in self.topics[topic].items()
            },
        )

    def offsets_at(
        self, topic: str, partitions: Sequence[int], moment: datetime
    ) -> Mapping[int, int]:
        """As `MarkReader.offsets_at`."""
        self._topic_id(topic)
        wanted = moment.timestamp() * 1000
        return {number: self._first_at(topic, number, wanted) for number in partitions}

    def _first_at(self, topic: str, partition: int, wanted: float) -> int:
        log = self.topics[topic][partition]
        return min((o for o, ts in log.records.items() if ts >= wanted), default=log.end)

    def _topic_id(self, topic: str) -> str:
        if topic not in self.topic_ids:
            raise TopicMissing(topic=topic)
        return self.topic_ids[topic]


def _end(log: MemoryPartition, isolation_level: IsolationLevel) -> int:
    if isolation_level is IsolationLevel.READ_COMMITTED and log.stable is not None:
        return log.stable
    return log.end


@dataclass
class MemoryControlTable:
    """The control table as a list of rows.

    Attributes:
        rows: What a reader of the Delta table would see.
        before_append: Called with the ledger before each append; may raise, or write first.
    """

    rows: list[Row] = field(default_factory=list)
    before_append: Callable[[Ledger], None] = lambda _ledger: None

    def ledger(self, pipeline: str) -> Ledger:
        """As `ControlTable.ledger`."""
        mine = [row for row in self.rows if row["pipeline"] == pipeline]
        return Ledger.fold(pipeline, decode(pipeline, mine))

    def append(self, ledger: Ledger, events: Sequence[ControlEvent], recorded_at: datetime) -> None:
        """As `ControlTable.append`."""
        self.before_append(ledger)
        number = ledger.event_number + 1
        if self.ledger(ledger.pipeline).event_number != ledger.event_number:
            raise ControlConflict(pipeline=ledger.pipeline, event_number=number)
        self.rows += encode(ledger.pipeline, number, recorded_at, events)


@dataclass
class MemoryTable:
    """A data table with Delta's transaction rule, as `Sink` and `DataTable` over a `MemoryKafka`.

    Attributes:
        kafka: What to read from.
        rows: (topic id, partition, offset, plan sequence) of every row.
        commits: App id, plan and fingerprint of each version, from 1; a fence has none.
        before_commit: Called with the plan before each commit; may raise.
        after_commit: Called with the plan after each commit; may raise: the answer is lost.
    """

    kafka: MemoryKafka
    rows: list[tuple[str, int, int, int]] = field(default_factory=list)
    commits: list[tuple[str, int, str]] = field(default_factory=list)
    before_commit: Callable[[Plan], None] = lambda _plan: None
    after_commit: Callable[[Plan], None] = lambda _plan: None

    def state(self, app_ids: Collection[str], since: int) -> TableState:
        """As `DataLog.state`; this table knows no RESTORE."""
        del since
        newest = {app_id: self._transaction_version(app_id) for app_id in app_ids}
        return TableState(
            transactions={app_id: number for app_id, number in newest.items() if number},
            restores=(),
        )

    def prepare(self, pipeline: str) -> None:
        """As `DataTable.prepare`; there is always a table, and it is the pipeline's."""

    def fence(self, plan: Plan) -> None:
        """As `DataTable.fence`."""
        self.before_commit(plan)
        if self._transaction_version(plan.app_id) < plan.sequence:
            self.commits.append((plan.app_id, plan.sequence, ""))

    def land(self, plan: Plan) -> None:
        """As `Sink.land`; a stale transaction is skipped with success, as Delta does."""
        read = [
            (plan.topic_id, planned.partition, offset, plan.sequence)
            for planned in plan.ranges
            for offset in self._visible(plan.topic, planned.partition)
            if planned.start <= offset < planned.end
        ]
        self.before_commit(plan)
        if self._transaction_version(plan.app_id) >= plan.sequence:
            return
        self.rows += read
        self.commits.append((plan.app_id, plan.sequence, plan.fingerprint))
        self.after_commit(plan)

    def find(self, plan: Plan) -> Landing | None:
        """As `DataLog.find`."""
        for version, (app_id, sequence, fingerprint) in enumerate(self.commits, start=1):
            if (app_id, sequence) != (plan.app_id, plan.sequence) or not fingerprint:
                continue
            if fingerprint != plan.fingerprint:
                raise ForeignCommit(
                    pipeline=plan.pipeline,
                    sequence=plan.sequence,
                    fingerprint=plan.fingerprint,
                    other_fingerprint=fingerprint,
                )
            return Landing.of(plan, version, self._counts(plan))
        return None

    def _visible(self, topic: str, partition: int) -> list[int]:
        return sorted(self.kafka.topics[topic][partition].records)

    def _transaction_version(self, app_id: str) -> int:
        return max((seq for app, seq, _ in self.commits if app == app_id), default=0)

    def _counts(self, plan: Plan) -> Mapping[int, int]:
        return {
            index: sum(
                1
                for _, partition, offset, sequence in self.rows
                if sequence == plan.sequence
                and partition == planned.partition
                and planned.start <= offset < planned.end
            )
            for index, planned in enumerate(plan.ranges)
        }

"""In-memory adapters with the behaviour of the real ones, and failures that can be injected.

The behaviour suites in tests/ run over these and over the real adapters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeAlias

from tests.support.ledger_summary import split_settled
from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.datafile import DataFile
from tidemark.core.errors import LedgerBehindTable, PlanCannotLand
from tidemark.core.event_rows import Row, backfill_requests, decode, encode, losses
from tidemark.core.events import BackfillRequested, ControlEvent, EventKind, LossAccepted
from tidemark.core.ledger import CheckedLedger, Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.origins import PlanOrigin
from tidemark.core.plan import Plan, PlanKind, PlanRef, is_removal, removal_app_id
from tidemark.core.plan_history import PlanEntry, plan_history
from tidemark.core.publication import PublicationStatus
from tidemark.core.record import LogRecord, TimestampType
from tidemark.core.table_state import (
    FENCED_VERSION,
    Fence,
    PlanCommit,
    Restore,
    RowOrigin,
    RowRange,
    TableSize,
    TableState,
    check_survives_restores,
)
from tidemark.core.throughput import RUNS, Run, Throughput
from tidemark.core.watermarks import IsolationLevel, Position, TopicWatermarks, Watermarks
from tidemark.delta.errors import ControlConflict, RemovalFenced, TransactionConflict
from tidemark.kafka.errors import GroupActive, OffsetsDeleted, TopicMissing


@dataclass
class MemoryPartition:
    """Log of one partition.

    Attributes:
        records: Timestamp in ms by offset; an offset without a record is a gap.
        low: Low watermark.
        end: High watermark.
        stable: Last stable offset; the high watermark if None.
        epochs: First offset of each leader epoch, from epoch 0 on.
    """

    records: dict[int, int] = field(default_factory=dict)
    low: int = 0
    end: int = 0
    stable: int | None = None
    epochs: list[int] = field(default_factory=lambda: [0])


@dataclass
class MemoryKafka:
    """A Kafka cluster in memory, which is also its own `TopicReader` and `LogReader`."""

    cluster_id: str = "memory"
    topic_ids: dict[str, str] = field(default_factory=dict)
    topics: dict[str, dict[int, MemoryPartition]] = field(default_factory=dict)
    retention: timedelta | None = None

    def create(self, topic: str, partitions: int, topic_id: str) -> None:
        """Create a topic, or recreate it with a new id."""
        self.topic_ids[topic] = topic_id
        self.topics[topic] = {number: MemoryPartition() for number in range(partitions)}

    def produce(self, topic: str, partition: int, count: int, timestamp_ms: int = 0) -> None:
        """Append records."""
        log = self.topics[topic][partition]
        for offset in range(log.end, log.end + count):
            log.records[offset] = timestamp_ms
        log.end += count

    def add_gaps(self, topic: str, partition: int, count: int) -> None:
        """Append offsets that no reader sees, such as transaction markers."""
        self.topics[topic][partition].end += count

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the low watermark."""
        log = self.topics[topic][partition]
        log.low = before
        log.records = {offset: ts for offset, ts in log.records.items() if offset >= before}

    def elect(self, topic: str, partition: int, end: int | None = None) -> None:
        """Elect another leader; an unclean election truncates the log at `end`."""
        log = self.topics[topic][partition]
        log.end = log.end if end is None else end
        log.records = {offset: ts for offset, ts in log.records.items() if offset < log.end}
        log.epochs.append(log.end)

    def restore_log(self, topic: str, partition: int, end: int) -> None:
        """Restore the log from a copy that ended at `end`, with its leader epochs."""
        log = self.topics[topic][partition]
        log.end = end
        log.records = {offset: ts for offset, ts in log.records.items() if offset < end}
        log.epochs = [begin for begin in log.epochs if begin < end] or [0]

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        return TopicWatermarks(
            cluster_id=self.cluster_id,
            topic=topic,
            topic_id=self._topic_id(topic),
            isolation_level=isolation_level,
            partitions={
                number: Watermarks(
                    low=log.low,
                    end=_end(log, isolation_level),
                    leader_epoch=len(log.epochs) - 1,
                )
                for number, log in self.topics[topic].items()
            },
        )

    def truncated_partition(self, topic: str, positions: Mapping[int, Position]) -> int | None:
        self._topic_id(topic)
        for partition, known in positions.items():
            log = self.topics[topic][partition]
            epoch = known.leader_epoch
            if epoch is not None and min(log.epochs[epoch + 1 :], default=log.end) < known.offset:
                return partition
        return None

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """See `LogReader.read`; a record's value is its offset."""
        self._topic_id(topic)
        for partition, wanted in spans.items():
            log = self.topics[topic][partition]
            end = _end(log, isolation_level)
            for span in wanted:
                if span.start < log.low or span.end > end:
                    raise OffsetsDeleted(topic=topic, partition=partition, offset=span.start)
                for offset in range(span.start, span.end):
                    if offset in log.records:
                        yield _record(partition, offset, log.records[offset])

    def first_records(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        for partition, wanted in spans.items():
            yield from islice(self.read(topic, isolation_level, {partition: wanted}), 1)

    def read_briefly(
        self,
        topic: str,
        isolation_level: IsolationLevel,
        partition: int,
        span: Span,
        *,
        seconds: float,  # noqa: ARG002  memory needs no time
        size: int,
    ) -> tuple[Sequence[LogRecord], int]:
        found = []
        for record in self.read(topic, isolation_level, {partition: SpanSet((span,))}):
            found.append(record)
            size -= record.size
            if size <= 0:
                return found, record.offset + 1
        return found, span.end

    def retention_time(self, topic: str) -> timedelta | None:
        self._topic_id(topic)
        return self.retention

    def offsets_at(
        self, topic: str, partitions: Sequence[int], moment: datetime
    ) -> Mapping[int, int]:
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


def _record(partition: int, offset: int, timestamp_ms: int) -> LogRecord:
    return LogRecord(
        partition=partition,
        offset=offset,
        key=None,
        value=b"%d" % offset,
        headers=(("place", b"%d/%d" % (partition, offset)),),
        timestamp_ms=timestamp_ms,
        timestamp_type=TimestampType.CREATE,
    )


def _end(log: MemoryPartition, isolation_level: IsolationLevel) -> int:
    if isolation_level is IsolationLevel.READ_COMMITTED and log.stable is not None:
        return log.stable
    return log.end


@dataclass
class MemoryControlTable:
    """The control table as a list of rows.

    Attributes:
        rows: The rows.
        newest: Newest event number of each pipeline in the log of the table.
        before_append: Called with the ledger before each append; may raise, or write first.
    """

    rows: list[Row] = field(default_factory=list)
    newest: dict[str, int] = field(default_factory=dict)
    before_append: Callable[[Ledger], None] = lambda _ledger: None

    def ledger(self, pipeline: str) -> Ledger:
        mine = [row for row in self.rows if row["pipeline"] == pipeline]
        return Ledger.fold(pipeline, decode(pipeline, mine), self.newest.get(pipeline, 0))

    def summary(self, pipeline: str) -> Ledger:
        mine = [row for row in self.rows if row["pipeline"] == pipeline]
        others, settled = split_settled(mine)
        numbers = {row["event_number"] for row in mine}
        return Ledger.fold(
            pipeline,
            decode(pipeline, others),
            max([self.newest.get(pipeline, 0), *numbers]),
            settled=settled,
            present=len(numbers),
        )

    def settled_counts(
        self, pipeline: str, topic_id: str, partition: int, window: Span
    ) -> Mapping[int, Sequence[RangeCount]]:
        """See `ControlReader.settled_counts`; of the plans that only the full ledger has."""
        kept = self.summary(pipeline).plans
        counts = {
            number: [
                count
                for count in record.held_now.counts
                if count.partition == partition
                and count.start < window.end
                and window.start < count.end
            ]
            for number, record in self.ledger(pipeline).plans.items()
            if number not in kept and record.held_now and record.plan.topic_id == topic_id
        }
        return {number: some for number, some in counts.items() if some}

    def rows_since(self, pipeline: str, event: int) -> Sequence[Row]:
        mine = (row for row in self.rows if row["pipeline"] == pipeline)
        return [row for row in mine if row["event_number"] >= event]

    def rows_of_plans(
        self, pipeline: str, plans: SpanSet, *, with_replaced: bool = False
    ) -> Sequence[Row]:
        numbers = {number for run in plans for number in range(run.start, run.end)}
        columns = ("plan_sequence", "superseded_by") if with_replaced else ("plan_sequence",)
        mine = (row for row in self.rows if row["pipeline"] == pipeline)
        return [row for row in mine if numbers & {row.get(column) for column in columns}]

    def throughput(self, pipeline: str) -> Throughput:
        by_event: dict[tuple[int, str], list[Row]] = defaultdict(list)
        mine = [row for row in self.rows if row["pipeline"] == pipeline]
        gone = {row["plan_sequence"] for row in mine if row["event"] in _REMOVALS}
        for row in mine:
            if row.get("plan_kind") == PlanKind.LIVE and row["plan_sequence"] not in gone:
                by_event[row["plan_sequence"], row["event"]].append(row)
        sequences = sorted(number for number, event in by_event if event == EventKind.LANDED)[
            -RUNS:
        ]
        if not sequences:
            return Throughput()
        return Throughput(
            runs=[
                _run(
                    number, by_event[number, EventKind.PLANNED], by_event[number, EventKind.LANDED]
                )
                for number in sequences
            ],
            lows={
                row["partition"]: row["low_watermark"]
                for row in by_event[sequences[0], EventKind.PLANNED]
            },
        )

    def recorded_at(self, pipeline: str, event: EventKind) -> Mapping[int, datetime]:
        return {
            row["plan_sequence"]: row["recorded_at"]
            for row in reversed(self.rows)
            if row["pipeline"] == pipeline and row["event"] == event
        }

    def publication_statuses(self, pipeline: str) -> Mapping[int, PublicationStatus]:
        plans = self.ledger(pipeline).plans.items()
        return {number: each.decision.status for number, each in sorted(plans) if each.decision}

    def accepted_losses(self, pipeline: str) -> Sequence[tuple[datetime, LossAccepted]]:
        kind = EventKind.LOSS_ACCEPTED
        return losses(
            pipeline, [r for r in self.rows if (r["pipeline"], r["event"]) == (pipeline, kind)]
        )

    def plan_record(self, pipeline: str, sequence: int) -> PlanRecord | None:
        return self.ledger(pipeline).plans.get(sequence)

    def plan_records(self, plans: Collection[PlanRef]) -> Mapping[PlanRef, PlanRecord]:
        found = {plan: self.plan_record(plan.pipeline, plan.sequence) for plan in plans}
        return {plan: record for plan, record in found.items() if record is not None}

    def plans_of(self, pipeline: str, origin: PlanOrigin) -> Sequence[PlanRecord]:
        plans = self.ledger(pipeline).plans
        return [plans[each] for each in sorted(plans) if origin in plans[each].requesters]

    def plan_history(self, pipeline: str, first: int, end: int) -> Sequence[PlanEntry]:
        mine = [row for row in self.rows if row["pipeline"] == pipeline]
        of_plans = [row for row in mine if row.get("plan_sequence") is not None]
        return plan_history(pipeline, of_plans, first, end)

    def backfills(
        self, pipeline: str, requested_by: str | None = None
    ) -> Sequence[BackfillRequested]:
        rows = [
            row
            for row in self.rows
            if (row["pipeline"], row["event"]) == (pipeline, EventKind.BACKFILL_REQUESTED)
            and requested_by in (None, row["requested_by"])
        ]
        return backfill_requests(decode(pipeline, rows))

    def check_appends(self) -> None:
        """No other program changes the properties of this table."""

    def append(
        self, ledger: CheckedLedger, events: Sequence[ControlEvent], recorded_at: datetime
    ) -> None:
        self.before_append(ledger)
        number = ledger.event_number + 1
        if self.ledger(ledger.pipeline).event_number != ledger.event_number:
            raise ControlConflict(pipeline=ledger.pipeline, event_number=number)
        self.rows += encode(ledger.pipeline, number, recorded_at, events)
        self.newest[ledger.pipeline] = number

    def clear(self) -> None:
        """Remove the table."""
        self.rows.clear()
        self.newest.clear()

    def restore(self, pipeline: str, event_number: int) -> None:
        """Remove later rows as a RESTORE does; their event numbers stay in the log."""
        self.rows = [
            row
            for row in self.rows
            if row["pipeline"] != pipeline or row["event_number"] <= event_number
        ]


_REMOVALS = (EventKind.UNDO_STARTED, EventKind.UNDONE)


def _run(sequence: int, planned: Sequence[Row], landed: Sequence[Row]) -> Run:
    first = min(row["event_number"] for row in landed)
    ranges = [row for row in landed if row["event_number"] == first and "partition" in row]
    return Run(
        sequence=sequence,
        planned_at=min(row["recorded_at"] for row in planned),
        landed_at=min(row["recorded_at"] for row in landed),
        offsets=sum(row["end_offset"] - row["start_offset"] for row in ranges),
        records=sum(row["records"] for row in ranges),
    )


@dataclass
class MemoryGroups:
    """Consumer groups of a cluster, as `GroupOffsets`.

    Attributes:
        offsets: Committed offsets by group, topic and partition.
        active: Groups with members.
    """

    offsets: dict[str, dict[str, dict[int, int]]] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)

    def committed(self, group: str, topic: str, partitions: Collection[int]) -> Mapping[int, int]:
        known = self.offsets.get(group, {}).get(topic, {})
        return {partition: at for partition, at in known.items() if partition in partitions}

    def has_members(self, group: str) -> bool:
        return group in self.active

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        if group in self.active:
            raise GroupActive(group=group, reason="it has members")
        self.offsets.setdefault(group, {}).setdefault(topic, {}).update(offsets)


MemoryRow: TypeAlias = tuple[str, int, int, int]
"""Topic id, partition, offset, plan sequence."""


@dataclass
class MemoryTable:
    """A data table with Delta's transaction rule, as `Sink` and `DataTable` over a `MemoryKafka`.

    Attributes:
        kafka: The cluster to read.
        rows: Every row of the newest version.
        commits: App id, plan and fingerprint of each version, from 1; a fence and a RESTORE have
            no fingerprint.
        contents: Rows of each version, from 1.
        restores: Every RESTORE.
        plans: Plans that landed, by fingerprint: the metadata of their commits.
        removed: Versions that removed a plan's rows, by plan.
        fenced: Fences of repairs, by application id.
        files: Rows that were written, whether or not a commit has added them.
        stamps: Timestamps of rows, where they are not 0.
        records_per_task: Argument of the last write.
        before_commit: Called with the plan before each commit; may raise.
        after_commit: Called with the plan after each commit; may raise, as for a lost answer.
    """

    kafka: MemoryKafka
    rows: list[MemoryRow] = field(default_factory=list)
    commits: list[tuple[str, int, str]] = field(default_factory=list)
    contents: list[tuple[MemoryRow, ...]] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    plans: dict[str, Plan] = field(default_factory=dict)
    removed: dict[int, list[int]] = field(default_factory=dict)
    fenced: dict[str, Fence] = field(default_factory=dict)
    files: list[MemoryRow] = field(default_factory=list)
    stamps: dict[MemoryRow, int] = field(default_factory=dict)
    records_per_task: int = 0
    before_commit: Callable[[Plan], None] = lambda _plan: None
    after_commit: Callable[[Plan], None] = lambda _plan: None

    def state(
        self,
        pipeline: str,  # noqa: ARG002  the port's; it is the pipeline's table
        app_ids: Collection[str],
        *,
        restores_since: int | None = None,
    ) -> TableState:
        newest = {app_id: self.transaction_version(app_id) for app_id in app_ids}
        return TableState(
            transactions={app_id: number for app_id, number in newest.items() if number},
            version=len(self.commits),
            restores=tuple(
                restore
                for restore in self.restores
                if restores_since is not None and restore.at > restores_since
            ),
        )

    def prepare(self, pipeline: str) -> TableSize:  # noqa: ARG002  the port's
        """See `DataTable.prepare`; the table always exists and belongs to the pipeline."""
        return self.size()

    def fence(self, plan: Plan, seen: TableState) -> None:
        self._check_not_older(seen)
        self.before_commit(plan)
        if self.transaction_version(plan.app_id) < plan.sequence:
            self.commit(plan.app_id, plan.sequence)

    def check_removals(self) -> None:
        """See `DataLog.check_removals`; all rows can be removed."""

    def check_removable(self, plan: Plan) -> None:
        """See `DataTable.check_removable`; all rows are readable."""

    def remove_rows(self, plan: Plan, epoch: int, seen: TableState) -> tuple[int, int]:
        self._check_not_older(seen)
        if self.transaction_version(removal_app_id(plan.pipeline, epoch)) >= FENCED_VERSION:
            raise RemovalFenced(pipeline=plan.pipeline, sequence=plan.sequence)
        kept = [row for row in self.rows if row[3] != plan.sequence]
        removed = len(self.rows) - len(kept)
        self.rows = kept
        self.commit(removal_app_id(plan.pipeline, epoch), plan.sequence)
        self.removed.setdefault(plan.sequence, []).append(len(self.commits))
        return removed, len(self.commits)

    def fence_chains(self, pipeline: str, app_ids: Collection[str], requested_by: str) -> int:
        self.prepare(pipeline)
        unfenced = [each for each in app_ids if self.transaction_version(each) < FENCED_VERSION]
        if not unfenced:
            raise TransactionConflict(pipeline=pipeline, sequence=FENCED_VERSION)
        self.commit_fence(unfenced, requested_by)
        return len(self.commits)

    def commit_fence(self, app_ids: Collection[str], requested_by: str) -> None:
        """Fence application ids. Each one has a commit; all are fenced after the last one."""
        before = {app_id: self.transaction_version(app_id) for app_id in app_ids}
        for app_id in app_ids:
            self.commit(app_id, FENCED_VERSION)
        version = len(self.commits)
        self.fenced |= {i: Fence(version, requested_by, before[i]) for i in app_ids}

    def write(self, plan: Plan, records_per_task: int) -> tuple[DataFile, ...]:
        """See `Sink.write`; each row has a separate file."""
        self.records_per_task = records_per_task
        rows = self.read(plan)
        first = len(self.files)
        self.files += rows
        return tuple(
            DataFile(
                path=str(number),
                size=1,
                modified_ms=0,
                partition=partition,
                records=1,
                first=offset,
                last=offset,
                earliest_ms=None,
                latest_ms=None,
            )
            for number, (_, partition, offset, _) in enumerate(rows, start=first)
        )

    def append(self, plan: Plan, files: Sequence[DataFile], seen: TableState) -> bool:
        self.before_commit(plan)
        self._check_not_older(seen)
        if self.transaction_version(plan.app_id) >= plan.sequence:
            return False
        self.add(plan, [self.files[int(file.path)] for file in files])
        self.after_commit(plan)
        return True

    def _check_not_older(self, seen: TableState) -> None:
        """Check that the table follows a compared state; no test replaces it by an older one."""
        found = {app_id: self.transaction_version(app_id) for app_id in seen.transactions}
        assert not seen.is_later_than(found)

    def add(self, plan: Plan, rows: Sequence[MemoryRow]) -> None:
        """Commit rows of a plan; first remove rows at its offsets if it is a replacement."""
        if plan.replaces:
            self._remove_replaced(plan, {row[1:3] for row in rows})
        self.plans[plan.fingerprint] = plan
        self.commit(plan.app_id, plan.sequence, plan.fingerprint, rows)

    def _remove_replaced(self, plan: Plan, successors: Collection[tuple[int, int]]) -> None:
        spans = plan.spans()
        replaced = [
            row
            for row in self.rows
            if row[0] == plan.topic_id
            and spans.get(row[1], SpanSet()).overlap_size(Span(row[2], row[2] + 1))
        ]
        lost = sorted(row[1:3] for row in replaced if row[1:3] not in successors)
        if lost:
            raise PlanCannotLand.by_lost_rows(
                plan.pipeline,
                plan.sequence,
                tuple((partition, offset, offset + 1) for partition, offset in lost),
            )
        self.rows = [row for row in self.rows if row not in replaced]

    def land(self, plan: Plan) -> None:
        """Write and append, even if the topic was recreated in between."""
        self.append(plan, self.write(plan, 1), self.state(plan.pipeline, ()))

    def read(self, plan: Plan) -> list[MemoryRow]:
        """Return the rows that the engine reads for a plan from the topic that has its name now."""
        stamps = {
            (plan.topic_id, planned.partition, offset, plan.sequence): timestamp_ms
            for planned in plan.ranges
            for offset, timestamp_ms in sorted(
                self.kafka.topics[plan.topic][planned.partition].records.items()
            )
            if planned.start <= offset < planned.end
        }
        self.stamps.update(
            {row: timestamp_ms for row, timestamp_ms in stamps.items() if timestamp_ms}
        )
        return list(stamps)

    def commit(
        self, app_id: str, sequence: int, fingerprint: str = "", rows: Sequence[MemoryRow] = ()
    ) -> None:
        """Add a version."""
        self.rows += rows
        self.commits.append((app_id, sequence, fingerprint))
        self.contents.append(tuple(self.rows))

    def restore(self, version: int) -> None:
        """Restore the rows of a version as a RESTORE does; transactions stay."""
        self.rows = list(self.contents[version - 1]) if version else []
        self.commit("", 0)
        self.restores.append(Restore(at=len(self.commits), to=version))

    def find_landing(self, plan: Plan) -> Landing | None:
        for version, (app_id, sequence, fingerprint) in enumerate(self.commits, start=1):
            if (app_id, sequence) != (plan.app_id, plan.sequence) or not fingerprint:
                continue
            if fingerprint != plan.fingerprint:
                raise LedgerBehindTable.with_other_plan(
                    pipeline=plan.pipeline,
                    sequence=plan.sequence,
                    fingerprint=plan.fingerprint,
                    other_fingerprint=fingerprint,
                )
            check_survives_restores(plan, version, self.restores)
            committed = self.plans.get(fingerprint, plan)
            return Landing.of(committed, version, self._counts(plan))
        return None

    def current_landing(self, plan: Plan) -> Landing:
        return Landing.of(plan, len(self.commits), self._counts(plan))

    def offsets_without_rows(self, plan: Plan) -> Mapping[int, SpanSet]:
        landed = spans_by_partition(
            (partition, Span(offset, offset + 1))
            for _, partition, offset, sequence in self.rows
            if sequence == plan.sequence
        )
        return plan.offsets_outside(landed)

    def size(self) -> TableSize:
        """See `DataLog.size`; a row is one byte."""
        return TableSize(records=len(self.rows), bytes=len(self.rows))

    def stored_bytes(self, sequence: int | None = None) -> int:
        """See `DataLog.stored_bytes`; a row is one byte."""
        return sum(1 for row in self.rows if sequence in (None, row[3]))

    def row_count(self) -> int:
        return len(self.rows)

    def files_with(self, topic_id: str, spans: Mapping[int, SpanSet]) -> int:
        """See `DataLog.files_with`; each row is a file."""
        return sum(
            row[0] == topic_id
            and spans.get(row[1], SpanSet()).overlap_size(Span(row[2], row[2] + 1)) > 0
            for row in self.rows
        )

    def spans_by_plan(
        self, topic_id: str, partition: int, window: Span, most: int
    ) -> Mapping[int, SpanSet] | None:
        found = spans_by_partition(
            (sequence, Span(offset, offset + 1))
            for of, number, offset, sequence in self.rows
            if (of, number) == (topic_id, partition) and window.start <= offset < window.end
        )
        return None if sum(len(spans.spans) for spans in found.values()) > most else found

    def count_offsets(self, topic_id: str, partition: int, span: Span, sequence: int) -> int:
        wanted = range(span.start, span.end)
        return len(
            {
                row
                for row in self.rows
                if row == (topic_id, partition, row[2], sequence) and row[2] in wanted
            }
        )

    def bytes_to_read(self, partition: int, window: Span, most: int) -> int:
        """See `BronzeLog.bytes_to_read`; a row is one byte."""
        return self.bytes_to_scan(partition, window, most) // 16

    def bytes_to_scan(self, partition: int, window: Span, most: int) -> int:  # noqa: ARG002
        """See `BronzeLog.bytes_to_scan`; a row is 16 bytes."""
        here = (row for row in self.rows if row[1] == partition)
        return 16 * sum(window.start <= row[2] < window.end for row in here)

    def row_ranges(self) -> tuple[RowRange, ...]:
        runs: list[tuple[tuple[int, str, int], list[int]]] = []
        for topic_id, partition, offset, sequence in sorted(self.rows):
            place = (sequence, topic_id, partition)
            if not runs or runs[-1][0] != place:
                runs.append((place, []))
            runs[-1][1].append(offset)
        return tuple(
            RowRange(
                sequence=sequence,
                topic_id=topic_id,
                partition=partition,
                first=offsets[0],
                last=offsets[-1],
                rows=len(offsets),
            )
            for (sequence, topic_id, partition), offsets in sorted(runs)
        )

    def plan_commits(self, origin: PlanOrigin) -> tuple[PlanCommit, ...]:
        return tuple(
            PlanCommit(version=version, plan=replace(self.plans[mark], origin=origin))
            for version, (_, _, mark) in reversed(list(enumerate(self.commits, start=1)))
            if mark in self.plans
        )

    def removal_versions(self) -> Mapping[int, Sequence[int]]:
        return {sequence: list(versions) for sequence, versions in self.removed.items()}

    def fences(self) -> Mapping[str, Fence]:
        return dict(self.fenced)

    def log_start(self) -> int:
        return 0

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        for row_id, row_partition, offset, sequence in sorted(self.rows):
            if (row_id, row_partition) == (topic_id, partition) and (
                span.start <= offset < span.end
            ):
                row = (row_id, row_partition, offset, sequence)
                yield sequence, _record(partition, offset, self.stamps.get(row, 0))

    def last_rows(
        self, topic_id: str, spans: Mapping[int, SpanSet], most: int
    ) -> Mapping[int, Sequence[LogRecord]]:
        found = {
            partition: [
                record for span in some for _, record in self.rows_of(topic_id, partition, span)
            ]
            for partition, some in spans.items()
        }
        return {partition: rows[: -most - 1 : -1] for partition, rows in found.items() if rows}

    def row_origins(self, bounds: Span) -> tuple[RowOrigin, ...]:  # noqa: ARG002  the port's
        """Return none: rows in memory have no topic and no time of landing."""
        return ()

    def transaction_version(self, app_id: str) -> int:
        """Return the newest transaction version of an application id; 0 before the first."""
        for its_id, sequence, _ in reversed(self.commits):
            if its_id == app_id:
                return sequence
            # A removal also has a transaction of its plan.
            if is_removal(its_id) and app_id == its_id.replace(":removal", f":{sequence}:removal"):
                return 1
        return 0

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

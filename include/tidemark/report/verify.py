"""Proving a data table complete: Kafka read again by another reader, and compared."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple, Self, TypeAlias

from tidemark.core import plan_rules as planning
from tidemark.core.errors import InvalidRange
from tidemark.core.events import EventKind
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet, union_by_partition
from tidemark.core.table_state import RowOrigin, RowRange
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks
from tidemark.ingest.errors import NothingLanded
from tidemark.ingest.protocols import (
    ControlReader,
    DataLog,
    LogReader,
    RowOriginReader,
    WatermarkReader,
)
from tidemark.ingest.recorder import checked_ledger
from tidemark.report.errors import UndoUnfinished
from tidemark.report.verification import SHOWN, Difference, Found, PartitionVerdict, Verification
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)

_CHUNK = 50_000
"""Offsets compared at once: what is held in memory is their checksums."""
_BEYOND = 2**63 - 1
"""After every offset."""

_CLOCKS_DIFFER = timedelta(hours=1)
"""How far the clocks of two machines may be apart."""
Kept: TypeAlias = Mapping[int, Sequence[tuple[int, str]]]
"""Plan and checksum of every row, by offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Compares the landed rows of one pipeline with Kafka's current records. Writes nothing.

    Attributes:
        spec: The pipeline.
        watermarks: The log's watermarks.
        control: The landed plans.
        data_log: The rows.
        log_reader: The records.
        row_origins: The rows as well; None for a typed table, whose labels are not compared.
    """

    spec: PipelineSpec
    watermarks: WatermarkReader
    control: ControlReader
    data_log: DataLog
    log_reader: LogReader
    row_origins: RowOriginReader | None = None

    def verify(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> Verification:
        """Read landed ranges again and compare them record by record, by checksum.

        Args:
            partition: Only this one; all if None.
            start: Only offsets from here on.
            end: Only offsets before this one.
            say: Called with each line of progress.

        Raises:
            NothingLanded: None of these offsets has landed.
            InvalidRange: The end is not after the start.
            EndBehindCommitted: The log ends before the last landed offset.
            TopicRecreated, TopicChanged, ClusterChanged, PartitionsShrunk: Kafka has another topic
                now than the one that landed.
            ControlTruncated, TableBehindLedger, LedgerBehindTable, TableRestored: The tables are
                not of one history.
            UndoUnfinished: Rows of a plan that is being undone may still be there.
            UnreadableFile: A file of the table cannot be read.
            OffsetsDeleted, KafkaUnavailable: Try again.
        """
        checked_ledger(self.control, self.spec.name, self.data_log)
        ledger = self.control.ledger(self.spec.name)
        for sequence, record in ledger.plans.items():
            if record.undoing:
                raise UndoUnfinished(pipeline=self.spec.name, sequence=sequence)
        newest = self.watermarks.topic_watermarks(self.spec.topic, self.spec.isolation_level)
        planning.check_identity(ledger, newest)
        levels = self._levels(ledger)
        bounds = self._bounds(partition, start, end)
        wanted = self._wanted(ledger.landed, partition, bounds)
        row_ranges = [h for h in self.data_log.row_ranges() if partition in (None, h.partition)]
        whole = _whole(ledger, row_ranges)
        verdicts: list[PartitionVerdict] = []
        differences: list[Found] = []
        owners = _Owners.of(ledger, newest.topic_id)
        strangers: list[_Row] = []
        for number, spans in sorted(wanted.items()):
            parts = [
                (watermarks, spans.intersection(some.get(number, SpanSet())))
                for watermarks, some in levels
            ]
            verdict, found = self._partition(number, parts, whole, owners, strangers, say)
            verdicts.append(verdict)
            differences += found
        # Read after the rows, so it contains every plan that landed them.
        ledger = self.control.ledger(self.spec.name)
        differences += self._unexplained(ledger, newest, row_ranges, bounds)
        if self.row_origins:
            differences += _Owners.of(ledger, newest.topic_id).mislabelled(strangers)
            landed_at = self.control.recorded_at(self.spec.name, EventKind.LANDED)
            labels = [
                e for e in self.row_origins.row_origins(bounds) if partition in (None, e.partition)
            ]
            differences += _mislabelled(ledger, labels, landed_at)
        return Verification(
            pipeline=self.spec.name,
            topic=newest.topic,
            topic_id=newest.topic_id,
            isolation_levels=tuple(watermarks.isolation_level for watermarks, _ in levels),
            partitions=tuple(verdicts),
            differences=_counted(differences),
            first=tuple(differences[:SHOWN]),
        )

    def _levels(self, ledger: Ledger) -> list[tuple[TopicWatermarks, Mapping[int, SpanSet]]]:
        """Landed offsets of each isolation level, and the topic's watermarks at that level.

        Raises:
            EndBehindCommitted: The log ends before the last landed offset.
        """
        levels = []
        for level in IsolationLevel:
            landed = union_by_partition(
                record.held_now.spans()
                for record in ledger.plans.values()
                if record.held_now
                and (record.plan.topic_id, record.plan.isolation_level) == (ledger.topic_id, level)
            )
            if landed:
                watermarks = self.watermarks.topic_watermarks(self.spec.topic, level)
                planning.check_identity(ledger, watermarks)
                for number, spans in landed.items():
                    planning.check_end(ledger.pipeline, watermarks, number, spans.spans[-1].end)
                levels.append((watermarks, landed))
        return levels

    def _bounds(self, partition: int | None, start: int | None, end: int | None) -> Span:
        first, beyond = start or 0, _BEYOND if end is None else end
        if not 0 <= first < beyond:
            raise InvalidRange(
                topic=self.spec.topic,
                partition=partition or 0,
                start=first,
                end=beyond,
                rule="0 <= start < end; the end is the next offset after the range",
            )
        return Span(first, beyond)

    def _wanted(
        self, landed: Mapping[int, SpanSet], partition: int | None, bounds: Span
    ) -> Mapping[int, SpanSet]:
        wanted = {
            number: spans.within(bounds)
            for number, spans in landed.items()
            if partition is None or number == partition
        }
        wanted = {number: spans for number, spans in wanted.items() if spans}
        if not wanted:
            raise NothingLanded(
                pipeline=self.spec.name, topic=self.spec.topic, subject="any of the given offsets"
            )
        return wanted

    def _unexplained(
        self,
        ledger: Ledger,
        watermarks: TopicWatermarks,
        row_ranges: Sequence[RowRange],
        bounds: Span,
    ) -> Iterator[Found]:
        """Rows where no plan of the ledger has landed, or may be landing."""
        incarnations = {record.plan.topic_id for record in ledger.plans.values()}
        for held in row_ranges:
            run = SpanSet((Span(held.first, held.last + 1),)).within(bounds)
            if held.topic_id == watermarks.topic_id:
                planned = (ledger.landed, ledger.pending)
                for spans in planned:
                    run = run.difference(spans.get(held.partition, SpanSet()))
            elif held.topic_id in incarnations:
                record = ledger.plans.get(held.sequence)
                if record is None or record.plan.topic_id == held.topic_id:
                    continue
            for span in run:
                for sequence, row in self.data_log.rows_of(held.topic_id, held.partition, span):
                    if sequence == held.sequence:
                        yield Found(
                            difference=Difference.FOREIGN,
                            partition=row.partition,
                            offset=row.offset,
                        )

    def _partition(
        self,
        partition: int,
        parts: Sequence[tuple[TopicWatermarks, SpanSet]],
        whole: frozenset[int],
        owners: _Owners,
        strangers: list[_Row],
        say: Callable[[str], None],
    ) -> tuple[PartitionVerdict, list[Found]]:
        """Compare one partition, separately for each isolation level.

        Adds rows of other plans than the ledger has there to `strangers`.
        """
        verdict = PartitionVerdict(
            partition=partition, offsets=0, records=0, rows=0, compacted=0, gone=0
        )
        differences: list[Found] = []
        equal: int | None = None
        for watermarks, spans in parts:
            readable = watermarks.partitions[partition].readable(spans)
            gone = spans.difference(readable)
            for span in _chunks(readable):
                seen, unread = self._seen(watermarks, partition, span)
                kept = self._kept(watermarks, partition, span, unread)
                for offset in sorted(unread):
                    say(f"partition {partition}: offset {offset}: a header name is not UTF-8")
                unseen = {
                    offset
                    for offset, found in kept.items()
                    if offset not in seen and found[0][0] in whole
                }
                verdict = replace(
                    verdict,
                    offsets=verdict.offsets + span.size,
                    records=verdict.records + len(seen),
                    rows=verdict.rows + sum(map(len, kept.values())),
                    compacted=verdict.compacted + len(unseen),
                    headers_unread=verdict.headers_unread + len(unread),
                )
                found = _differences(partition, seen, kept, unseen)
                equals = seen.keys() - {each.offset for each in found}
                equal = max(equals, default=equal)
                differences += found
                strangers += owners.strangers(partition, kept)
                say(f"partition {partition}: {span} compared, {len(differences)} difference(s)")
            for span in _chunks(gone):
                kept = self._kept(watermarks, partition, span)
                differences += _doubled(partition, kept)
                strangers += owners.strangers(partition, kept)
            verdict = replace(verdict, gone=verdict.gone + gone.size)
        if differences and equal is not None:
            say(
                f"partition {partition}: the last row that equals Kafka's record has offset {equal}"
            )
        return verdict, differences

    def _seen(
        self, watermarks: TopicWatermarks, partition: int, span: Span
    ) -> tuple[Mapping[int, str], Collection[int]]:
        """Checksums of records by offset, and the offsets whose headers cannot be compared."""
        seen: dict[int, str] = {}
        unread: set[int] = set()
        for record in self.log_reader.read(
            watermarks.topic, watermarks.isolation_level, {partition: SpanSet((span,))}
        ):
            seen[record.offset] = record.checksum
            if record.headers is None:
                unread.add(record.offset)
        return seen, unread

    def _kept(
        self, watermarks: TopicWatermarks, partition: int, span: Span, unread: Collection[int] = ()
    ) -> Kept:
        kept: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for sequence, row in self.data_log.rows_of(watermarks.topic_id, partition, span):
            compared = row.without_headers() if row.offset in unread else row
            kept[row.offset].append((sequence, compared.checksum))
        return kept


class _Row(NamedTuple):
    """A row, and the plan that it names."""

    partition: int
    offset: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owners:
    """The plans that contain rows of one incarnation, or may be landing them.

    Attributes:
        spans: Offsets of each plan, by partition and plan.
    """

    spans: Mapping[int, Mapping[int, SpanSet]]

    @classmethod
    def of(cls, ledger: Ledger, topic_id: str) -> Self:
        """The plans of a complete ledger."""
        spans: dict[int, dict[int, SpanSet]] = defaultdict(dict)
        for sequence, record in ledger.plans.items():
            is_held = record.held_now and not record.undoing
            held = record.held_now.spans() if is_held and record.held_now else record.plan.spans()
            if record.plan.topic_id == topic_id and (is_held or record.is_open or record.undoing):
                for partition, some in held.items():
                    spans[partition][sequence] = some
        return cls(spans=spans)

    def strangers(self, partition: int, kept: Kept) -> Iterator[_Row]:
        """Rows that name a plan without their offset."""
        known = self.spans.get(partition, {})
        for offset, rows in kept.items():
            for sequence, _ in rows:
                there = known.get(sequence)
                if there is None or not there.overlap_size(Span(offset, offset + 1)):
                    yield _Row(partition, offset, sequence)

    def mislabelled(self, rows: Iterable[_Row]) -> Iterator[Found]:
        """Select the rows that name a plan without their offset."""
        for row in rows:
            if any(self.strangers(row.partition, {row.offset: [(row.sequence, "")]})):
                yield Found(
                    difference=Difference.MISLABELLED, partition=row.partition, offset=row.offset
                )


def _mislabelled(
    ledger: Ledger, labels: Sequence[RowOrigin], landed_at: Mapping[int, datetime]
) -> Iterator[Found]:
    """Rows with another topic or landing time than the rest of their plan.

    One driver writes all rows of a plan and reads its clock once.
    """
    times: dict[int | None, Counter[datetime | None]] = defaultdict(Counter)
    for label in labels:
        times[label.sequence][label.ingested_at] += label.rows
    for label in labels:
        record = ledger.plans.get(label.sequence or 0)
        if record is None:
            continue
        at = label.ingested_at
        (usual, _), *_ = times[label.sequence].most_common(1)
        latest = landed_at.get(record.plan.sequence)
        is_late = at is not None and latest is not None and at > latest + _CLOCKS_DIFFER
        if label.topic != record.plan.topic or at is None or at != usual or is_late:
            yield Found(
                difference=Difference.MISLABELLED,
                partition=label.partition,
                offset=label.first,
                rows=label.rows,
            )


def _counted(differences: Iterable[Found]) -> Mapping[Difference, int]:
    counted = Counter[Difference]()
    for found in differences:
        counted[found.difference] += found.rows
    return counted


def _whole(ledger: Ledger, row_ranges: Iterable[RowRange]) -> frozenset[int]:
    """Plans with as many rows as were recorded when they landed."""
    rows = Counter[int]()
    for holding in row_ranges:
        rows[holding.sequence] += holding.rows
    return frozenset(
        sequence
        for sequence, record in ledger.plans.items()
        if record.held_now and record.held_now.records == rows[sequence]
    )


def _chunks(spans: Iterable[Span]) -> Iterator[Span]:
    for span in spans:
        for start in range(span.start, span.end, _CHUNK):
            yield Span(start, min(start + _CHUNK, span.end))


def _differences(
    partition: int, seen: Mapping[int, str], kept: Kept, unseen: Collection[int]
) -> list[Found]:
    found = [(offset, Difference.LOST) for offset in seen if offset not in kept]
    for offset, rows in kept.items():
        if offset not in seen:
            if offset not in unseen:
                found.append((offset, Difference.FOREIGN))
        elif {checksum for _, checksum in rows} != {seen[offset]}:
            found.append((offset, Difference.ALTERED))
    differences = [
        Found(difference=kind, partition=partition, offset=offset) for offset, kind in sorted(found)
    ]
    return differences + _doubled(partition, kept)


def _doubled(partition: int, kept: Kept) -> list[Found]:
    return [
        Found(difference=Difference.DOUBLED, partition=partition, offset=offset)
        for offset, rows in sorted(kept.items())
        if len(rows) > 1
    ]

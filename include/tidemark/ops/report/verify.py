"""Verifies a data table: reads Kafka again with another reader, and compares every record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple, Self, TypeAlias

from tidemark.bronze.ingest.errors import NothingLanded
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.repair.errors import UndoUnfinished
from tidemark.core import plan_rules
from tidemark.core.errors import InvalidSelection
from tidemark.core.events import EventKind
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import (
    Span,
    SpanSet,
    intersection_by_partition,
    size_of,
    union_by_partition,
)
from tidemark.core.table_state import RowOrigin, RowRange
from tidemark.core.texts import counted
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks
from tidemark.ops.report.verification import (
    MAX_LISTED,
    Difference,
    DifferenceKind,
    PartitionComparison,
    PlansAtLevel,
    Verification,
)
from tidemark.spec.model import PipelineSpec

_CHUNK_OFFSETS = 50_000
"""Offsets whose checksums are in memory at a time."""
_MAX_OFFSET = 2**63 - 1

_MAX_CLOCK_DIFFERENCE = timedelta(hours=1)
"""Tolerated difference between the clocks of two machines."""
Checksums: TypeAlias = Mapping[int, Sequence[tuple[int, str]]]
"""Plan number and checksum of every row, by offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Compares the landed rows of one pipeline with Kafka's current records. Writes nothing.

    Attributes:
        spec: The pipeline.
        ports: The ports of its table.
    """

    spec: PipelineSpec
    ports: Ports

    def verify(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        print_line: Callable[[str], None] = lambda _: None,
        show_done: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Verification:
        """Read landed ranges again and compare them record by record, by checksum.

        Args:
            partition: Only this partition; all if None.
            start: Only offsets from this one on.
            end: Only offsets before this one.
            print_line: Called with each line of progress.
            show_done: Called with the number of compared partitions, and the number of all.

        Raises:
            NothingLanded: None of these offsets has landed.
            InvalidSelection: The topic has no such partition, or the end is not after the start.
            UndoUnfinished: The table may still contain rows of a plan that is being undone.
            TopicDiffers, EndBehindCommitted: Kafka lacks the topic, or the offsets, that landed.
            UnreadableFile: A file of the table cannot be read.
            HistoriesDiverge, KafkaFailure: See `ledgers.read_checked_ledger` and `LogReader`.
        """
        ledger: Ledger = read_checked_ledger(
            self.ports.control, self.spec.name, self.ports.table, full=True
        )
        if unfinished := UndoUnfinished.first_of(ledger):
            raise unfinished
        current = self.ports.watermarks_of(self.spec)
        plan_rules.check_identity(ledger, current)
        plan_rules.check_partitions(current, [] if partition is None else [partition])
        levels = self._levels(ledger)
        bounds = range_of(self.spec, partition, start, end)
        selected = within(ledger.landed, partition, bounds)
        if not selected:
            raise NothingLanded(
                pipeline=self.spec.name, topic=self.spec.topic, subject="any of the given offsets"
            )
        compared_levels = _compared_levels(ledger, selected)
        lost = within(ledger.lost, partition, bounds)
        row_ranges = [r for r in self.ports.table.row_ranges() if partition in (None, r.partition)]
        complete_plans = _complete_plans(ledger, row_ranges)
        plan_spans = _PlanSpans.of(ledger, current.topic_id)
        comparisons: list[PartitionComparison] = []
        differences: list[Difference] = []
        foreign_rows: list[_Row] = []
        numbers = sorted({*selected, *lost})
        for done, number in enumerate(numbers):
            show_done(done, len(numbers))
            spans = selected.get(number, SpanSet())
            parts = [
                (watermarks, spans.intersection(landed.get(number, SpanSet())))
                for watermarks, landed in levels
            ]
            comparison, found = self._compare(
                number, parts, complete_plans, plan_spans, foreign_rows, print_line
            )
            comparisons.append(replace(comparison, lost=lost.get(number, SpanSet()).size))
            differences += found
        # Read after the rows, so it contains every plan that landed them.
        ledger = self.ports.control.ledger(self.spec.name)
        differences += self._unexpected_ranges(ledger, current, row_ranges, bounds)
        plan_spans = _PlanSpans.of(ledger, current.topic_id)
        differences += plan_spans.mislabelled(foreign_rows)
        landed_at = self.ports.control.recorded_at(self.spec.name, EventKind.LANDED)
        origins = [
            each
            for each in self.ports.table.row_origins(bounds)
            if partition in (None, each.partition)
        ]
        differences += _mislabelled(ledger, origins, landed_at)
        return Verification(
            pipeline=self.spec.name,
            topic=current.topic,
            topic_id=current.topic_id,
            isolation_level=self.spec.isolation_level,
            isolation_levels=tuple(each.isolation_level for each in compared_levels),
            other_levels=tuple(
                each
                for each in compared_levels
                if each.isolation_level is not self.spec.isolation_level
            ),
            partitions=tuple(comparisons),
            differences=_count_by_kind(differences),
            first=tuple(
                replace(each, plan=plan_spans.plan_at(each.partition, each.offset))
                for each in differences[:MAX_LISTED]
            ),
        )

    def _levels(self, ledger: Ledger) -> list[tuple[TopicWatermarks, Mapping[int, SpanSet]]]:
        """Return the topic's watermarks and the landed offsets of each isolation level."""
        levels = []
        for level in IsolationLevel:
            landed = union_by_partition(
                record.held_now.spans()
                for record in ledger.plans.values()
                if record.held_now
                and (record.plan.topic_id, record.plan.isolation_level) == (ledger.topic_id, level)
            )
            if landed:
                watermarks = self.ports.watermarks.topic_watermarks(self.spec.topic, level)
                plan_rules.check_identity(ledger, watermarks)
                for number, spans in landed.items():
                    plan_rules.check_end(ledger.pipeline, watermarks, number, spans.spans[-1].end)
                levels.append((watermarks, landed))
        return levels

    def _unexpected_ranges(
        self,
        ledger: Ledger,
        watermarks: TopicWatermarks,
        row_ranges: Sequence[RowRange],
        bounds: Span,
    ) -> Iterator[Difference]:
        """Yield rows at offsets that no plan of the ledger has landed or may be landing."""
        topic_ids = {record.plan.topic_id for record in ledger.plans.values()}
        for row_range in row_ranges:
            spans = SpanSet((Span(row_range.first, row_range.last + 1),)).within(bounds)
            if row_range.topic_id == watermarks.topic_id:
                for planned in (ledger.landed, ledger.pending):
                    spans = spans.difference(planned.get(row_range.partition, SpanSet()))
            elif row_range.topic_id in topic_ids:
                record = ledger.plans.get(row_range.sequence)
                if record is None or record.plan.topic_id == row_range.topic_id:
                    continue
            for span in spans:
                for sequence, row in self.ports.table.rows_of(
                    row_range.topic_id, row_range.partition, span
                ):
                    if sequence == row_range.sequence:
                        yield Difference(
                            difference=DifferenceKind.UNEXPECTED,
                            partition=row.partition,
                            offset=row.offset,
                        )

    def _compare(
        self,
        partition: int,
        parts: Sequence[tuple[TopicWatermarks, SpanSet]],
        complete_plans: frozenset[int],
        plan_spans: _PlanSpans,
        foreign_rows: list[_Row],
        print_line: Callable[[str], None],
    ) -> tuple[PartitionComparison, list[Difference]]:
        """Compare one partition, separately for each isolation level.

        Appends rows whose plan does not contain their offset to `foreign_rows`.
        """
        comparison = PartitionComparison(partition=partition)
        differences: list[Difference] = []
        last_equal: int | None = None
        for watermarks, spans in parts:
            readable = watermarks.partitions[partition].readable(spans)
            deleted = spans.difference(readable)
            for span in chunks(readable):
                records, unread = self._records(watermarks, partition, span)
                rows = self._rows(watermarks, partition, span, unread)
                for offset in sorted(unread):
                    print_line(
                        f"partition {partition}: offset {offset}: a header name is not UTF-8"
                    )
                compacted = {
                    offset
                    for offset, found in rows.items()
                    if offset not in records and found[0][0] in complete_plans
                }
                comparison = replace(
                    comparison,
                    offsets=comparison.offsets + span.size,
                    records=comparison.records + len(records),
                    rows=comparison.rows + sum(map(len, rows.values())),
                    compacted=comparison.compacted + len(compacted),
                    headers_unread=comparison.headers_unread + len(unread),
                )
                chunk_differences = _differences(partition, records, rows, compacted)
                equal = records.keys() - {each.offset for each in chunk_differences}
                last_equal = max(equal, default=last_equal)
                differences += chunk_differences
                foreign_rows += plan_spans.foreign_rows(partition, rows)
                found = counted(len(differences), "difference")
                print_line(f"partition {partition}: {span} compared, {found}")
            for span in chunks(deleted):
                rows = self._rows(watermarks, partition, span)
                differences += _duplicates(partition, rows)
                foreign_rows += plan_spans.foreign_rows(partition, rows)
            comparison = replace(comparison, deleted=comparison.deleted + deleted.size)
        if differences and last_equal is not None:
            print_line(
                f"partition {partition}: the last row that equals Kafka's record has offset "
                f"{last_equal}"
            )
        return comparison, differences

    def _records(
        self, watermarks: TopicWatermarks, partition: int, span: Span
    ) -> tuple[Mapping[int, str], Collection[int]]:
        """Return the checksums of Kafka's records by offset, and offsets with unread headers."""
        checksums: dict[int, str] = {}
        unread: set[int] = set()
        for record in self.ports.log_reader.read(
            watermarks.topic, watermarks.isolation_level, {partition: SpanSet((span,))}
        ):
            checksums[record.offset] = record.checksum
            if record.headers is None:
                unread.add(record.offset)
        return checksums, unread

    def _rows(
        self, watermarks: TopicWatermarks, partition: int, span: Span, unread: Collection[int] = ()
    ) -> Checksums:
        checksums: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for sequence, row in self.ports.table.rows_of(watermarks.topic_id, partition, span):
            compared = row.without_headers() if row.offset in unread else row
            checksums[row.offset].append((sequence, compared.checksum))
        return checksums


class _Row(NamedTuple):
    """A row, with the plan number in it."""

    partition: int
    offset: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanSpans:
    """Offsets of the plans that have rows of one topic id, or may be landing them.

    Attributes:
        spans: Offsets by partition and plan number.
    """

    spans: Mapping[int, Mapping[int, SpanSet]]

    @classmethod
    def of(cls, ledger: Ledger, topic_id: str) -> Self:
        """Return the offsets of the plans of a complete ledger."""
        spans: dict[int, dict[int, SpanSet]] = defaultdict(dict)
        for sequence, record in ledger.plans.items():
            landing = None if record.undoing else record.held_now
            of_plan = landing.spans() if landing else record.plan.spans()
            may_have_rows = landing or record.is_open or record.undoing
            if record.plan.topic_id == topic_id and may_have_rows:
                for partition, each in of_plan.items():
                    spans[partition][sequence] = each
        return cls(spans=spans)

    def plan_at(self, partition: int, offset: int) -> int | None:
        """Return the number of the plan of an offset; None if no plan has it."""
        place = Span(offset, offset + 1)
        plans = self.spans.get(partition, {}).items()
        return next((sequence for sequence, spans in plans if spans.overlap_size(place)), None)

    def foreign_rows(self, partition: int, rows: Checksums) -> Iterator[_Row]:
        """Yield the rows with the number of a plan that does not contain their offset."""
        plans = self.spans.get(partition, {})
        for offset, found in rows.items():
            for sequence, _ in found:
                spans = plans.get(sequence)
                if spans is None or not spans.overlap_size(Span(offset, offset + 1)):
                    yield _Row(partition, offset, sequence)

    def mislabelled(self, rows: Iterable[_Row]) -> Iterator[Difference]:
        """Yield differences for the rows whose plan does not contain their offset."""
        for row in rows:
            if any(self.foreign_rows(row.partition, {row.offset: [(row.sequence, "")]})):
                yield Difference(
                    difference=DifferenceKind.MISLABELLED,
                    partition=row.partition,
                    offset=row.offset,
                )


def range_of(spec: PipelineSpec, partition: int | None, start: int | None, end: int | None) -> Span:
    """Return the offsets to compare.

    Raises:
        InvalidSelection: The end is not after the start.
    """
    first, beyond = start or 0, _MAX_OFFSET if end is None else end
    if not 0 <= first < beyond:
        raise InvalidSelection.of_range(
            pipeline=spec.name,
            topic=spec.topic,
            partition=partition or 0,
            start=first,
            end=beyond,
            rule="0 <= start < end; the end is the next offset after the range",
        )
    return Span(first, beyond)


def within(
    offsets: Mapping[int, SpanSet], partition: int | None, bounds: Span
) -> Mapping[int, SpanSet]:
    """Return the offsets of one partition, or of all, within bounds."""
    return {
        number: some
        for number, spans in offsets.items()
        if partition in (None, number) and (some := spans.within(bounds))
    }


def _compared_levels(ledger: Ledger, selected: Mapping[int, SpanSet]) -> Sequence[PlansAtLevel]:
    """Return the plans of the selected offsets by isolation level."""
    offsets: dict[IsolationLevel, dict[int, int]] = defaultdict(dict)
    for sequence, record in ledger.plans.items():
        held = record.held_now.spans() if record.held_now else {}
        size = size_of(intersection_by_partition(held, selected))
        if size and record.plan.topic_id == ledger.topic_id:
            offsets[record.plan.isolation_level][sequence] = size
    return [
        PlansAtLevel(
            isolation_level=level, plans=tuple(offsets[level]), offsets=sum(offsets[level].values())
        )
        for level in IsolationLevel
        if level in offsets
    ]


def _mislabelled(
    ledger: Ledger, origins: Sequence[RowOrigin], landed_at: Mapping[int, datetime]
) -> Iterator[Difference]:
    """Yield rows whose topic or ingestion time differs from the other rows of their plan.

    One driver writes all rows of a plan and reads its clock once.
    """
    times: dict[int | None, Counter[datetime | None]] = defaultdict(Counter)
    for origin in origins:
        times[origin.sequence][origin.ingested_at] += origin.rows
    for origin in origins:
        record = ledger.plans.get(origin.sequence or 0)
        if record is None:
            continue
        at = origin.ingested_at
        (most_common, _), *_ = times[origin.sequence].most_common(1)
        recorded_at = landed_at.get(record.plan.sequence)
        is_late = (
            at is not None and recorded_at is not None and at > recorded_at + _MAX_CLOCK_DIFFERENCE
        )
        if origin.topic != record.plan.topic or at is None or at != most_common or is_late:
            yield Difference(
                difference=DifferenceKind.MISLABELLED,
                partition=origin.partition,
                offset=origin.first,
                rows=origin.rows,
            )


def _count_by_kind(differences: Iterable[Difference]) -> Mapping[DifferenceKind, int]:
    counts = Counter[DifferenceKind]()
    for each in differences:
        counts[each.difference] += each.rows
    return counts


def _complete_plans(ledger: Ledger, row_ranges: Iterable[RowRange]) -> frozenset[int]:
    """Return the plans with as many rows as were recorded when they landed."""
    rows = Counter[int]()
    for each in row_ranges:
        rows[each.sequence] += each.rows
    return frozenset(
        sequence
        for sequence, record in ledger.plans.items()
        if record.held_now and record.held_now.records == rows[sequence]
    )


def chunks(spans: Iterable[Span], size: int = _CHUNK_OFFSETS) -> Iterator[Span]:
    """Split spans into spans of at most `size` offsets."""
    for span in spans:
        for start in range(span.start, span.end, size):
            yield Span(start, min(start + size, span.end))


def _differences(
    partition: int, records: Mapping[int, str], rows: Checksums, compacted: Collection[int]
) -> list[Difference]:
    kinds = [(offset, DifferenceKind.MISSING) for offset in records if offset not in rows]
    for offset, found in rows.items():
        if offset not in records:
            if offset not in compacted:
                kinds.append((offset, DifferenceKind.UNEXPECTED))
        elif {checksum for _, checksum in found} != {records[offset]}:
            kinds.append((offset, DifferenceKind.ALTERED))
    differences = [
        Difference(difference=kind, partition=partition, offset=offset)
        for offset, kind in sorted(kinds)
    ]
    return differences + _duplicates(partition, rows)


def _duplicates(partition: int, rows: Checksums) -> list[Difference]:
    return [
        Difference(difference=DifferenceKind.DUPLICATE, partition=partition, offset=offset)
        for offset, found in sorted(rows.items())
        if len(found) > 1
    ]

"""Coverage of single offsets: which landed offsets have a row, are gaps, or lack their row.

A landed offset without a row is a gap only if the table still has all rows of the range around it.
The control table has the number of rows that the plan landed there. Otherwise the offset is missing
if the whole range had rows; if it had gaps too, no count shows which offsets they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidemark.core import plan_rules
from tidemark.core.accounting import RangeCount
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.watermarks import TopicWatermarks
from tidemark.ingest.protocols import BronzeLog, ControlReader
from tidemark.lake.conflicts import retry_on_conflict
from tidemark.lake.errors import ControlConflict
from tidemark.report.coverage import (
    OffsetState,
    PartitionCoverage,
    PlanSpan,
    coverage,
    states_of,
)
from tidemark.report.errors import WindowTooLarge

MOST_BYTES = 64 * 2**20
"""Most bytes of offsets and plan numbers that a window decodes: about four million rows."""

HeldRanges: TypeAlias = Sequence[tuple[int, RangeCount]]
"""The ranges that plans hold, each with the number of its plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageReader:
    """Reads the coverage of one pipeline.

    Attributes:
        pipeline: Pipeline name.
        control: The control table.
        data_log: The bronze table.
        watermarks: Current watermarks of the topic.
        quarantined: Returns the quarantined offsets of an incarnation, by partition.
    """

    pipeline: str
    control: ControlReader
    data_log: BronzeLog
    watermarks: TopicWatermarks
    quarantined: Callable[[str], Mapping[int, SpanSet]]

    def read(self) -> tuple[PartitionCoverage, ...]:
        """Return the coverage of all partitions. Reads no row of the bronze table."""
        return self._coverage(self.control.summary(self.pipeline))

    def read_rows(
        self, partition: int, start: int | None = None, end: int | None = None
    ) -> PartitionCoverage:
        """Return the coverage of one partition, with the rows of a window.

        Args:
            partition: Partition number.
            start: First offset of the window; None for the first one that is not expired.
            end: Next offset after the window; None for the end of the log.

        Returns:
            The coverage. Its attribute `read` is None if the window is empty, and without `start`
            and `end` also if the partition has too many rows.

        Raises:
            UnknownPartition: The topic has no such partition.
            WindowTooLarge: The window has too many rows.
            ForeignTable, TableAltered: The data table is not the table of the pipeline.
            ControlConflict: Other processes changed the pipeline during each of several attempts.
        """
        plan_rules.check_partitions(self.watermarks, [partition])
        return retry_on_conflict(lambda: self._read_rows(partition, start, end))

    def _coverage(self, ledger: Ledger) -> tuple[PartitionCoverage, ...]:
        quarantined = self.quarantined(ledger.topic_id) if ledger.topic_id else {}
        return coverage(ledger, self.watermarks, quarantined)

    def _read_rows(self, partition: int, start: int | None, end: int | None) -> PartitionCoverage:
        ledger = self.control.summary(self.pipeline)
        found = next(each for each in self._coverage(ledger) if each.partition == partition)
        window = found.window(start, end)
        if window is None or ledger.topic_id is None:
            return found
        held = held_ranges(self.control, ledger, ledger.topic_id, partition, window)
        bounds = readable_bounds(self.data_log, partition, window, held)
        if bounds is None:
            if start is None and end is None:
                return found
            raise self._too_large(partition, window)
        self.data_log.state(self.pipeline, ())
        rows = self.data_log.spans_by_plan(ledger.topic_id, partition, bounds)
        # An undo records its start before it removes rows. So rows that it removed since the
        # ledger was read are not missing.
        newest = self.control.summary(self.pipeline).event_number
        if newest != ledger.event_number:  # fence: coverage-of-one-ledger
            raise ControlConflict(pipeline=self.pipeline, event_number=newest)
        opened = _open_spans(ledger, partition)
        return replace(
            with_rows(found, window, held, rows, bounds),
            plans=sorted(
                (each for each in (*_plan_spans(held), *opened) if _overlap(each.span, window)),
                key=lambda each: (each.span, each.sequence),
            ),
        )

    def _too_large(self, partition: int, window: Span) -> WindowTooLarge:
        return WindowTooLarge(
            pipeline=self.pipeline,
            partition=partition,
            start=window.start,
            end=window.end,
            megabytes=-(-self.data_log.bytes_to_scan(partition, window) // 2**20),
            limit=MOST_BYTES // 2**20,
        )


def held_ranges(
    control: ControlReader, ledger: Ledger, topic_id: str, partition: int, window: Span
) -> HeldRanges:
    """Return the ranges that overlap a window, of settled plans and of all others."""
    others = {
        number: record.held_now.counts
        for number, record in ledger.plans.items()
        if record.held_now and record.plan.topic_id == topic_id
    }
    settled = control.settled_counts(ledger.pipeline, topic_id, partition, window)
    return [
        (number, count)
        for counts in (settled, others)
        for number, some in counts.items()
        for count in some
        if count.partition == partition and _overlap(_span_of(count), window)
    ]


def readable_bounds(
    data_log: BronzeLog, partition: int, window: Span, held: HeldRanges
) -> Span | None:
    """Return the offsets to read: all ranges in the window as a whole if they are small enough.

    Otherwise the window alone, and None if the window is too large.
    """
    spans = [window, *(_span_of(count) for _, count in held)]
    whole = Span(min(span.start for span in spans), max(span.end for span in spans))
    for bounds in (whole, window):
        if data_log.bytes_to_scan(partition, bounds) <= MOST_BYTES:
            return bounds
    return None


def with_rows(
    found: PartitionCoverage,
    window: Span,
    held: HeldRanges,
    rows: Mapping[int, SpanSet],
    bounds: Span,
) -> PartitionCoverage:
    """Return a coverage in which the landed offsets of a window without a row are classified.

    Args:
        found: The coverage without rows.
        window: The window.
        held: The ranges that overlap the window.
        rows: Offsets with a row inside `bounds`, by plan.
        bounds: The offsets whose rows were read.
    """
    present = SpanSet.of(span for spans in rows.values() for span in spans)
    landed, quarantined = (
        found.states.get(state, SpanSet())
        for state in (OffsetState.LANDED, OffsetState.QUARANTINED)
    )
    absent = landed.union(quarantined).within(window).difference(present)
    spans_by_state: dict[OffsetState, list[Span]] = {}
    for sequence, count in held if absent else ():
        if here := absent.within(_span_of(count)):
            state = state_without_row(count, rows.get(sequence, SpanSet()), bounds)
            spans_by_state.setdefault(state, []).extend(here)
    states = {state: SpanSet.of(spans) for state, spans in spans_by_state.items()}
    # Only a damaged control table has landed offsets that no plan holds.
    for spans in (*states.values(),):
        absent = absent.difference(spans)
    states[OffsetState.UNCLEAR] = states.get(OffsetState.UNCLEAR, SpanSet()).union(absent)
    for spans in states.values():
        landed, quarantined = landed.difference(spans), quarantined.difference(spans)
    states |= {OffsetState.LANDED: landed, OffsetState.QUARANTINED: quarantined}
    return replace(found, states=states_of({**found.states, **states}), read=window)


def state_without_row(count: RangeCount, rows: SpanSet, bounds: Span) -> OffsetState:
    """Return the state of the offsets of a range without a row.

    Args:
        count: The range with the counts of its landing.
        rows: Offsets with a row of its plan inside `bounds`. A row of another plan proves nothing
            about the rows of this plan.
        bounds: The offsets whose rows were read.
    """
    span = _span_of(count)
    if count.gaps == 0:
        return OffsetState.MISSING
    if count.unproven_gaps:  # fence: unproven-gap-is-unclear
        return OffsetState.UNCLEAR
    is_whole = bounds.start <= span.start and span.end <= bounds.end
    # fence: gap-needs-every-row-of-its-range
    if is_whole and rows.overlap_size(span) == count.records:
        return OffsetState.GAP
    return OffsetState.UNCLEAR


def _open_spans(ledger: Ledger, partition: int) -> list[PlanSpan]:
    """Return the ranges of open plans, and of plans that are being undone."""
    return [
        PlanSpan(number, planned.span)
        for number, record in ledger.plans.items()
        if (record.is_open or record.undoing) and record.plan.topic_id == ledger.topic_id
        for planned in record.plan.ranges
        if planned.partition == partition
    ]


def _plan_spans(held: HeldRanges) -> list[PlanSpan]:
    return [PlanSpan(sequence, _span_of(count)) for sequence, count in held]


def _span_of(count: RangeCount) -> Span:
    return Span(count.start, count.end)


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end

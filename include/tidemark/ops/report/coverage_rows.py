"""Coverage of single offsets: which landed offsets have a row, are gaps, or lack their row.

A landed offset without a row is a gap only if the table still has all rows of the range around it.
The control table has the number of rows that the plan landed there. Otherwise the offset is missing
if the whole range had rows; if it had gaps too, no count shows which offsets they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from tidemark.bronze.ingest.ledgers import check_current, read_checked_ledger
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.protocols import BronzeLog, ControlReader
from tidemark.core import plan_rules
from tidemark.core.accounting import RangeCount
from tidemark.core.errors import TidemarkError, TopicDiffers
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import ControlConflict
from tidemark.delta.opened_tables import reopen_tables
from tidemark.ops.report.coverage import (
    KnownWatermarks,
    OffsetState,
    PartitionCoverage,
    PlanSpan,
    TopicCoverage,
    coverage,
    states_of,
)
from tidemark.spec.model import PipelineSpec

MOST_BYTES = 64 * 2**20
"""Most bytes of offsets and plan numbers that a query decodes: about four million rows."""
MOST_SPANS = 100_000
"""Most spans with rows of a window. A topic with transactions has one for each transaction."""

HeldRanges: TypeAlias = Sequence[tuple[int, RangeCount]]
"""The ranges that plans hold, each with the number of its plan."""
QuarantinedSpans: TypeAlias = Callable[[str, tuple[int, Span] | None], Mapping[int, SpanSet] | None]
"""Returns the quarantined offsets of an incarnation, by partition; None if they have more than
`MOST_SPANS` spans. The second argument selects a partition and a span of it."""


def _no_spans(_topic_id: str, _within: tuple[int, Span] | None) -> Mapping[int, SpanSet]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageReader:
    """Reads the coverage of one pipeline.

    Attributes:
        spec: The pipeline.
        ports: The ports of its table.
        quarantined: Returns the offsets in quarantine.
    """

    spec: PipelineSpec
    ports: Ports
    quarantined: QuarantinedSpans = _no_spans

    def watermarks(self) -> KnownWatermarks:
        """Return the current watermarks of the topic.

        Raises:
            TidemarkError: Kafka or the connection failed.
        """
        before = self.ports.control.summary(self.spec.name).event_number
        current = self.ports.watermarks_of(self.spec)
        return KnownWatermarks(watermarks=current, event_number=before)

    def read(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        read_watermarks: Callable[[], KnownWatermarks] | None = None,
        *,
        checks_table: bool = True,
    ) -> TopicCoverage:
        """Return the state of every offset of the topic, by partition.

        Without Kafka, returns the states in the control table and the data table, and the error. A
        data table that differs from the control table is an error beside the states, too.

        Args:
            partition: Return only this partition, and read its rows in a window to find missing
                rows and gaps. Rows of a window that is too large are not read: the attribute `read`
                of the partition is then None.
            start: First offset of the window; None for the first one that is not expired.
            end: Next offset after the window; None for the end of the log.
            read_watermarks: Returns watermarks that may be old; None to read current ones.
            checks_table: Whether to compare the data table with the control table, which takes long
                for many plans. A status contains this comparison.

        Raises:
            InvalidSelection: The topic has no such partition.
            ControlConflict: Other processes changed the pipeline during each of several attempts.
        """
        control, name = self.ports.control, self.spec.name

        def attempt() -> TopicCoverage:
            known: KnownWatermarks | None = None
            kafka_error: TidemarkError | None = None
            try:
                known = (read_watermarks or self.watermarks)()
            except TidemarkError as error:
                kafka_error = error
            # Read the ledger after the watermarks. In an older ledger, offsets that have landed and
            # that Kafka has deleted since then appear as lost.
            reopen_tables()
            reader = _CoverageAttempt(self, known)
            if partition is None:
                partitions = reader.read()
            else:
                one = reader.read_rows(partition, start, end)
                partitions = (one,) if one else ()
            topic_id = control.summary(name).topic_id
            return TopicCoverage(
                partitions=partitions,
                topic_id=topic_id or (known.watermarks.topic_id if known else None),
                kafka_error=kafka_error,
            )

        found = retry_on_conflict(attempt)
        try:
            if checks_table:
                read_checked_ledger(control, name, self.ports.table, rows=True)
        except TidemarkError as error:
            return replace(found, table_error=error)
        return found


class _CoverageAttempt(NamedTuple):
    """Reads one coverage, with the newest watermarks; None if Kafka could not be read."""

    reader: CoverageReader
    known: KnownWatermarks | None

    def read(self) -> tuple[PartitionCoverage, ...]:
        """Return the coverage of all partitions. Reads no row of the bronze table."""
        ledger = self.reader.ports.control.summary(self.reader.spec.name)
        spans = self.reader.quarantined(ledger.topic_id, None) if ledger.topic_id else {}
        return tuple(_with_quarantined(each, spans) for each in self._coverage(ledger))

    def read_rows(
        self, partition: int, start: int | None = None, end: int | None = None
    ) -> PartitionCoverage | None:
        """Return the coverage of one partition, with the rows of a window.

        Args:
            partition: Partition number.
            start: First offset of the window; None for the first one that is not expired.
            end: Next offset after the window; None for the end of the log.

        Returns:
            The coverage. Its attribute `read` is None if the window is empty, or if it has too many
            rows or too many spans with rows. A smaller window may be read. Without Kafka, None for
            a partition that is not in the control table.

        Raises:
            InvalidSelection: The topic has no such partition.
            ForeignTable, TableAltered: The data table is not the table of the pipeline.
            ControlConflict: Another process has changed the pipeline; read everything again.
        """
        if self.known:
            plan_rules.check_partitions(self.known.watermarks, [partition])
        ledger = self.reader.ports.control.summary(self.reader.spec.name)
        known = (each for each in self._coverage(ledger) if each.partition == partition)
        found = next(known, None)
        window = found.window(start, end) if found else None
        if found is None or window is None:
            return found
        topic_id = ledger.topic_id
        if topic_id is None:
            # No plan has landed, so there is no row to read.
            return replace(found, read=window)
        found = _with_quarantined(found, self.reader.quarantined(topic_id, (partition, window)))
        control, data_log = self.reader.ports.control, self.reader.ports.table
        data_log.state(ledger.pipeline, ())
        rows = _rows_in(data_log, topic_id, partition, window)
        if rows is None:
            return found
        held = held_ranges(control, ledger, topic_id, partition, window)
        classified = with_rows(
            found,
            window,
            held,
            rows,
            lambda plan, count: rows_of_range(data_log, topic_id, plan, count, window, rows),
        )
        # An undo records its start before it removes rows. So rows that it removed since the
        # ledger was read are not missing.
        check_current(control, ledger)  # fence: coverage-of-one-ledger
        plans = [*_plan_spans(held), *_open_spans(ledger, partition)]
        return replace(
            classified,
            plans=sorted(
                (each for each in plans if _overlap(each.span, window)),
                key=lambda each: (each.span, each.sequence),
            ),
        )

    def _coverage(self, ledger: Ledger) -> tuple[PartitionCoverage, ...]:
        known = self.known
        if known is None:
            return coverage(ledger, None)
        try:
            return coverage(ledger, known.beside(ledger))
        except TopicDiffers:
            if known.event_number == ledger.event_number:
                raise
            # The watermarks may be older than a change of the topic that the ledger contains.
            raise ControlConflict(
                pipeline=ledger.pipeline, event_number=ledger.event_number
            ) from None


def _with_quarantined(
    found: PartitionCoverage, spans: Mapping[int, SpanSet] | None
) -> PartitionCoverage:
    if spans is None:
        return replace(found, has_quarantined=False)
    return found.with_quarantined(spans.get(found.partition, SpanSet()))


def _rows_in(
    data_log: BronzeLog, topic_id: str, partition: int, window: Span
) -> Mapping[int, SpanSet] | None:
    """Return the offsets with a row in a window by plan; None if they are too many to read."""
    if data_log.bytes_to_scan(partition, window, MOST_BYTES) > MOST_BYTES:
        return None
    return data_log.spans_by_plan(topic_id, partition, window, MOST_SPANS)


def held_ranges(
    control: ControlReader, ledger: Ledger, topic_id: str, partition: int, window: Span
) -> HeldRanges:
    """Return the ranges that overlap a window, of settled plans and of all others."""
    others = {
        number: record.held_now.counts
        for number, record in ledger.plans.items()
        if record.held_now and record.plan.topic_id == topic_id
    }
    settled = {
        number: counts
        for number, counts in control.settled_counts(
            ledger.pipeline, topic_id, partition, window
        ).items()
        if number not in ledger.plans
    }
    return [
        (number, count)
        for counts in (settled, others)
        for number, some in counts.items()
        for count in some
        if count.partition == partition and _overlap(_span_of(count), window)
    ]


def rows_of_range(
    data_log: BronzeLog,
    topic_id: str,
    plan: int,
    count: RangeCount,
    window: Span,
    rows: Mapping[int, SpanSet],
) -> int | None:
    """Return the number of offsets of a range with a row of its plan.

    Reads the table only for a range with proven gaps that the window does not contain.

    Args:
        data_log: The bronze table.
        topic_id: Incarnation of the topic.
        plan: Number of the plan.
        count: The range.
        window: The window whose rows were read.
        rows: Offsets with a row in the window, by plan.

    Returns:
        None if the number does not matter, or if the range is too large to read.
    """
    span = _span_of(count)
    if window.start <= span.start and span.end <= window.end:
        return rows.get(plan, SpanSet()).overlap_size(span)
    has_proven_gaps = count.gaps and not count.unproven_gaps
    if not has_proven_gaps:
        return None
    if data_log.bytes_to_scan(count.partition, span, MOST_BYTES) > MOST_BYTES:
        return None
    return data_log.count_offsets(topic_id, count.partition, span, plan)


def with_rows(
    found: PartitionCoverage,
    window: Span,
    held: HeldRanges,
    rows: Mapping[int, SpanSet],
    rows_of: Callable[[int, RangeCount], int | None],
) -> PartitionCoverage:
    """Return a coverage in which the landed offsets of a window without a row are classified.

    Args:
        found: The coverage without rows.
        window: The window.
        held: The ranges that overlap the window.
        rows: Offsets with a row in the window, by plan.
        rows_of: Returns the number of offsets of a plan's range with a row, as `rows_of_range`.
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
            state = state_without_row(count, rows_of(sequence, count))
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


def state_without_row(count: RangeCount, rows: int | None) -> OffsetState:
    """Return the state of the offsets of a range without a row.

    Args:
        count: The range with the counts of its landing.
        rows: Number of its offsets with a row of its plan; None if unknown. A row of another plan
            proves nothing about the rows of this plan.
    """
    if count.gaps == 0:
        return OffsetState.MISSING
    if count.unproven_gaps:  # fence: unproven-gap-is-unclear
        return OffsetState.UNCLEAR
    if rows == count.records:  # fence: gap-needs-every-row-of-its-range
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

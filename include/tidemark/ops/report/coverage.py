"""Coverage of a topic: the state of every offset of a pipeline, as spans and as cells of a bar."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

from tidemark.core import plan_rules
from tidemark.core.errors import TidemarkError
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plain import record_of
from tidemark.core.texts import counted
from tidemark.core.watermarks import TopicWatermarks, Watermarks


class OffsetState(StrEnum):
    """The state of an offset, the most severe first."""

    LOST = "lost"
    """Kafka deleted the offset before a plan read it, also if an operator accepted the loss."""
    MISSING = "missing"
    """A plan landed the offset with a row, and the table no longer has the row."""
    UNCLEAR = "gap or missing"
    """The offset has landed and has no row, and no count proves that it is a gap."""
    QUARANTINED = "quarantined"
    """The offset has landed, and its record is in the quarantine of the typed table."""
    UNREAD = "unread"
    """Kafka has the offset, and no plan contains it yet."""
    EXPIRED = "expired"
    """Kafka has deleted the offset, and the pipeline started after it."""
    BEFORE_START = "before the start"
    """Kafka has the offset, the pipeline started after it, and no backfill has landed it."""
    PLANNED = "in an open plan"
    """An open plan contains the offset, or an undo is removing its row."""
    GAP = "gap"
    """The offset has landed and never had a row: aborted, compacted, or a marker."""
    LANDED = "landed"
    """The offset has landed. If the rows were read, it has a row; otherwise it may be a gap."""


_ALWAYS_VISIBLE = (OffsetState.LOST, OffsetState.MISSING, OffsetState.UNCLEAR)
"""States that a cell has even if only one of its offsets has them."""
DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Shares between the levels of a density. The scale is logarithmic, so that few and many
quarantined offsets differ visibly."""
MOST_DENSE = len(DENSITIES) + 2
"""The level of a cell whose offsets are all quarantined."""


class Cell(NamedTuple):
    """A cell of a bar.

    Attributes:
        state: As in `PartitionCoverage.cell_states`; None if it has no offsets of known state.
        window: Its offsets. A bar of this window zooms in.
    """

    state: OffsetState | None
    window: Span


class PlanSpan(NamedTuple):
    """Offsets of a plan in one partition: the ones that it holds, or of an open plan."""

    sequence: int
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCoverage:
    """The state of every offset of one partition.

    The sets of `states` are disjoint. Their union is every offset from 0 to the end of the log.
    Without Kafka, the union is every planned or landed offset and every accepted loss.

    Attributes:
        partition: Partition number.
        low_watermark: Low watermark; None if Kafka could not be read.
        end: End of the readable log at the pipeline's isolation level; None if Kafka could not be
            read.
        committed_offset: Committed offset; None if the pipeline has not started in the partition.
        read: The window whose rows were read; None if none were read, because no partition was
            selected, or the window is empty or too large. Only in this window `states` has missing
            rows and gaps. A selected partition has quarantined offsets only in its window.
        has_quarantined: Whether `states` has the quarantined offsets; False if they form too
            many spans.
        states: Offsets by state, without empty sets, the most severe state first.
        plans: The plans of the offsets in `read`, sorted by offset.
    """

    partition: int
    low_watermark: int | None
    end: int | None
    committed_offset: int | None
    read: Span | None = None
    has_quarantined: bool = True
    states: Mapping[OffsetState, SpanSet]
    plans: Sequence[PlanSpan] = ()

    @property
    def extent(self) -> Span | None:
        """The span to show: all offsets without the expired ones at the beginning.

        It is the expired offsets if there are no others, and None for an empty partition.
        """
        spans = [
            span
            for state, some in self.states.items()
            for span in some
            if state is not OffsetState.EXPIRED
        ]
        spans = spans or [*self.states.get(OffsetState.EXPIRED, ())]
        if not spans:
            return None
        return Span(min(span.start for span in spans), max(span.end for span in spans))

    def window(self, start: int | None = None, end: int | None = None) -> Span | None:
        """Return the part of `extent` between two offsets; None if it is empty.

        Args:
            start: First offset, which may be before `extent`; None for its first offset.
            end: Next offset after the window; None for the end of `extent`.
        """
        if (extent := self.extent) is None:
            return None
        first = extent.start if start is None else start
        after = extent.end if end is None else min(end, extent.end)
        return Span(first, after) if first < after else None

    def totals(self, window: Span) -> Mapping[OffsetState, int]:
        """Return the number of offsets of each state in a window, without zeros."""
        sizes = {state: spans.within(window).size for state, spans in self.states.items()}
        return {state: size for state, size in sizes.items() if size}

    def cells(self, window: Span, width: int) -> Sequence[Cell]:
        """Divide a window of offsets into cells of equal size.

        If the sizes are not equal in whole offsets, adjacent cells share an offset.

        Args:
            window: The offsets of the bar.
            width: Maximum number of cells; fewer if the window has fewer offsets.

        Returns:
            The cells with the states of `cell_states`.
        """
        states = self.cell_states(window, width)
        width = len(states)
        return [
            Cell(
                state,
                Span(
                    window.start + number * window.size // width,
                    window.start - (-(number + 1) * window.size // width),
                ),
            )
            for number, state in enumerate(states)
        ]

    def cell_states(self, window: Span, width: int) -> Sequence[OffsetState | None]:
        """Return the states of the cells of a window; arguments as in `cells`.

        An offset of the states `_ALWAYS_VISIBLE` determines the state of its cell, so that one in a
        billion is visible. Otherwise a cell has the state of most of its offsets; of equal numbers,
        the most severe one. Quarantined offsets count as landed: `quarantine_levels` shows them.
        """
        width = min(width, window.size)
        states: list[OffsetState | None] = [None] * width
        highest = [0] * width
        for state, spans in _with_quarantine_landed(self.states).items():
            for number, weight in enumerate(_weights(spans, window, width)):
                is_fixed = states[number] in _ALWAYS_VISIBLE
                if not is_fixed and weight > highest[number]:
                    states[number], highest[number] = state, weight
        return states

    def quarantine_levels(self, window: Span, width: int) -> Sequence[int]:
        """Return the density of quarantined offsets in the cells of a window.

        Arguments are those of `cells`.

        Returns:
            A level for each cell; none if the window has no quarantined offsets. Level 0 means no
            quarantined offset, 1 a share below the first of `DENSITIES`, and so on. `MOST_DENSE`
            means that all offsets are quarantined.
        """
        spans = self.states.get(OffsetState.QUARANTINED, SpanSet()).within(window)
        if not spans:
            return ()
        # The weight of a cell whose offsets are all quarantined is the size of the window.
        return [
            _level(weight / window.size)
            for weight in _weights(spans, window, min(width, window.size))
        ]

    def with_quarantined(self, offsets: SpanSet) -> PartitionCoverage:
        """Return the coverage with these landed offsets as quarantined."""
        landed = self.states.get(OffsetState.LANDED, SpanSet())
        states = {
            OffsetState.QUARANTINED: landed.intersection(offsets),
            OffsetState.LANDED: landed.difference(offsets),
        }
        return replace(self, states=states_of({**self.states, **states}))

    def plans_in(self, window: Span) -> Sequence[int]:
        """Return the numbers of the plans of some offsets, in the order of the offsets."""
        found = (
            each.sequence
            for each in self.plans
            if each.span.start < window.end and window.start < each.span.end
        )
        return [*dict.fromkeys(found)]

    def as_record(self) -> dict[str, Any]:
        """Return the coverage as plain values, with `[start, end]` for each span."""
        plans = [[each.sequence, each.span.start, each.span.end] for each in self.plans]
        return record_of(self, plans=plans)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCoverage:
    """The state of the offsets of a topic.

    Attributes:
        topic_id: Incarnation of the topic; None without Kafka before the first plan.
        partitions: The coverage of each partition, sorted by number. Without Kafka, only the
            partitions in the control table.
        kafka_error: The error that prevented the read of watermarks; None if they were read.
        table_error: The difference between the data table and the control table, or the error that
            prevented the comparison; None without either. The states come from the control table.
    """

    topic_id: str | None = None
    partitions: tuple[PartitionCoverage, ...]
    kafka_error: TidemarkError | None = None
    table_error: TidemarkError | None = None

    @property
    def errors(self) -> Sequence[TidemarkError]:
        """The errors beside the coverage."""
        return [error for error in (self.kafka_error, self.table_error) if error]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWatermarks:
    """Watermarks, which may be older than the ledger beside which they are shown.

    Attributes:
        watermarks: The watermarks.
        event_number: Number of the newest event of the pipeline before their read.
    """

    watermarks: TopicWatermarks
    event_number: int

    def beside(self, ledger: Ledger) -> TopicWatermarks:
        """Return the watermarks, with ends that contain the offsets of later plans."""
        if ledger.event_number == self.event_number:
            return self.watermarks
        partitions = {
            number: replace(here, end=max(here.end, _end_of_plans(ledger, number)))
            for number, here in self.watermarks.partitions.items()
        }
        return replace(self.watermarks, partitions=partitions)


def _end_of_plans(ledger: Ledger, partition: int) -> int:
    return max((span.end for span in ledger.covered_or_planned(partition)), default=0)


def coverage(ledger: Ledger, watermarks: TopicWatermarks | None) -> tuple[PartitionCoverage, ...]:
    """Return the coverage of each partition of a topic, sorted by partition. Reads no table.

    Quarantined offsets are landed ones; see `PartitionCoverage.with_quarantined`.

    Args:
        ledger: State of the pipeline; a summary suffices.
        watermarks: Current watermarks of its topic; None if Kafka could not be read.

    Raises:
        TopicRecreated, TopicChanged: The ledger belongs to another topic.
    """
    if watermarks is None:
        known = {*ledger.starts, *ledger.landed, *ledger.pending}
        return tuple(_known_coverage(ledger, each) for each in sorted(known))
    plan_rules.check_identity(ledger, watermarks)
    added = plan_rules.new_partitions(ledger, watermarks)
    deleted = plan_rules.lost_ranges(ledger, added, watermarks)
    return tuple(
        _with_watermarks(
            _known_coverage(ledger, partition),
            ledger,
            here,
            # Before the first plan, the start policy has not decided yet.
            begin=ledger.starts.get(partition, added.get(partition, here.low)),
            deleted=deleted.get(partition, SpanSet()),
        )
        for partition, here in sorted(watermarks.partitions.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPartitions:
    """The partitions that a page or a terminal has space for, and the number of the others.

    Attributes:
        partitions: Each partition with the offsets to show, None without offsets. Sorted by number
            if they are all, otherwise those with the most severe states first.
        others: Number of the other partitions by their most severe state, None without offsets.
    """

    partitions: Sequence[tuple[PartitionCoverage, Span | None]]
    others: Mapping[OffsetState | None, int]

    @property
    def others_text(self) -> str:
        """The number of the other partitions in words; empty without others."""
        if not self.others:
            return ""
        counts = (f"{count:,} {state or 'without offsets'}" for state, count in self.others.items())
        total = sum(self.others.values())
        return f"{counted(total, 'more partition')}, by most severe state: {', '.join(counts)}"


def choose_partitions(
    partitions: Sequence[PartitionCoverage],
    most: int,
    start: int | None = None,
    end: int | None = None,
) -> ChosenPartitions:
    """Return at most `most` partitions, so that the most severe states are visible.

    Args:
        partitions: The partitions of a topic, sorted by number.
        most: Maximum number of chosen partitions.
        start: First offset to show; None for the first one.
        end: Next offset after those to show; None for the end.
    """
    windows = [(each, each.window(start, end)) for each in partitions]
    if len(windows) <= most:
        return ChosenPartitions(partitions=windows, others={})
    order = [*OffsetState, None]
    windows.sort(key=lambda each: order.index(_most_severe(*each)))
    others = Counter(_most_severe(*each) for each in windows[most:])
    return ChosenPartitions(partitions=windows[:most], others=others)


def _most_severe(each: PartitionCoverage, window: Span | None) -> OffsetState | None:
    return next(iter(each.totals(window)), None) if window else None


def states_of(found: Mapping[OffsetState, SpanSet]) -> Mapping[OffsetState, SpanSet]:
    """Return sets of offsets in the order of the states, without empty sets."""
    return {state: found[state] for state in OffsetState if found.get(state)}


def _with_quarantine_landed(
    states: Mapping[OffsetState, SpanSet],
) -> Mapping[OffsetState, SpanSet]:
    """Return the states with the quarantined offsets as landed ones."""
    none = SpanSet()
    either = states.get(OffsetState.LANDED, none).union(states.get(OffsetState.QUARANTINED, none))
    return states_of({**states, OffsetState.QUARANTINED: none, OffsetState.LANDED: either})


def _weights(spans: SpanSet, window: Span, width: int) -> Sequence[int]:
    """Return the number of offsets of `spans` in each cell of a window, times `width`.

    The product is a whole number, also if a cell begins within an offset.
    """
    # Whole cells are added as differences to the previous cell.
    edges, steps = [0] * (width + 1), [0] * (width + 1)
    for span in spans.within(window):
        start, end = (span.start - window.start) * width, (span.end - window.start) * width
        first, last = start // window.size, end // window.size
        if first == last:
            edges[first] += end - start
            continue
        edges[first] += (first + 1) * window.size - start
        edges[last] += end - last * window.size
        steps[first + 1] += window.size
        steps[last] -= window.size
    whole = accumulate(steps)
    return [edge + step for edge, step in zip(edges, whole, strict=True)][:width]


def _level(share: float) -> int:
    """Return the level of a share; see `PartitionCoverage.quarantine_levels`."""
    if not share:
        return 0
    return MOST_DENSE if share >= 1 else 1 + bisect_right(DENSITIES, share)


def _known_coverage(ledger: Ledger, partition: int) -> PartitionCoverage:
    """Return the coverage of the offsets in the ledger, without watermarks."""
    planned = ledger.pending.get(partition, SpanSet())
    landed = ledger.landed.get(partition, SpanSet()).difference(planned)
    accepted = ledger.accepted_losses.get(partition, SpanSet()).difference(landed)
    states = {
        OffsetState.LOST: accepted.difference(planned),
        OffsetState.PLANNED: planned,
        OffsetState.LANDED: landed,
    }
    return PartitionCoverage(
        partition=partition,
        low_watermark=None,
        end=None,
        committed_offset=ledger.committed_offset(partition) if partition in ledger.starts else None,
        states=states_of(states),
    )


def _with_watermarks(
    known: PartitionCoverage, ledger: Ledger, here: Watermarks, *, begin: int, deleted: SpanSet
) -> PartitionCoverage:
    """Add the states of all other offsets, up to the end of the log, to a coverage."""
    planned_or_covered = ledger.covered_or_planned(known.partition)
    rest = planned_or_covered.missing_from(Span(0, here.end)) if here.end else SpanSet()
    before_start = rest.before(begin)
    expired = before_start.before(here.low)
    states = {
        OffsetState.LOST: known.states.get(OffsetState.LOST, SpanSet()).union(deleted),
        OffsetState.UNREAD: rest.difference(before_start).difference(deleted),
        OffsetState.EXPIRED: expired,
        OffsetState.BEFORE_START: before_start.difference(expired),
    }
    return replace(
        known,
        low_watermark=here.low,
        end=here.end,
        states=states_of({**known.states, **states}),
    )

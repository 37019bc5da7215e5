"""Coverage of a topic: the state of every offset of a pipeline, as spans and as cells of a bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.core import plan_rules
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.watermarks import TopicWatermarks, Watermarks


class OffsetState(StrEnum):
    """The state of an offset, rarest first. The rarest state of a cell's offsets wins the cell."""

    LOST = "lost"
    """Kafka deleted the offset before a plan read it, accepted or not."""
    UNREAD = "unread"
    """Kafka has the offset, and no plan contains it yet."""
    PLANNED = "in an open plan"
    """An open plan contains the offset, or an undo is removing its row."""
    BEFORE_START = "before the start"
    """The pipeline started after the offset, and no backfill has landed it."""
    LANDED = "landed"
    """The offset has landed: the table has its record, or it is a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCoverage:
    """The state of every offset of one partition.

    The sets of `states` are disjoint. Their union is every offset from the first one that is known
    to the end of the log.

    Attributes:
        partition: Partition number.
        low_watermark: Low watermark.
        end: End of the readable log at the pipeline's isolation level.
        committed_offset: Committed offset; None if the pipeline has not started in the partition.
        states: Offsets by state, without empty sets, rarest state first.
    """

    partition: int
    low_watermark: int
    end: int
    committed_offset: int | None
    states: Mapping[OffsetState, SpanSet]

    @property
    def extent(self) -> Span | None:
        """The span from the first to the last offset; None for an empty partition."""
        spans = [span for some in self.states.values() for span in some]
        if not spans:
            return None
        return Span(min(span.start for span in spans), max(span.end for span in spans))

    def cells(self, window: Span, width: int) -> Sequence[OffsetState | None]:
        """Divide a window of offsets into cells of equal size.

        Args:
            window: The offsets of the bar.
            width: Maximum number of cells; fewer if the window has fewer offsets.

        Returns:
            The rarest state in each cell, so that one lost offset in a billion is a visible cell.
            None for a cell without offsets of the partition.
        """
        width = min(width, window.size)
        cells: list[OffsetState | None] = [None] * width
        for state in reversed([*self.states]):
            for span in self.states[state].within(window):
                first = (span.start - window.start) * width // window.size
                after = -((window.start - span.end) * width // window.size)
                cells[first:after] = [state] * (after - first)
        return cells

    def as_record(self) -> dict[str, Any]:
        """Return the coverage as plain values, with `[start, end]` for each span."""
        return {
            "partition": self.partition,
            "low_watermark": self.low_watermark,
            "end": self.end,
            "committed_offset": self.committed_offset,
            "states": {
                state.value: [[span.start, span.end] for span in spans]
                for state, spans in self.states.items()
            },
        }


def coverage(ledger: Ledger, watermarks: TopicWatermarks) -> tuple[PartitionCoverage, ...]:
    """Return the coverage of each partition of a topic, sorted by partition.

    Args:
        ledger: State of the pipeline; a summary suffices.
        watermarks: Current watermarks of its topic.

    Raises:
        ClusterChanged, TopicChanged, TopicRecreated, PartitionsShrunk: The ledger belongs to
            another topic.
    """
    plan_rules.check_identity(ledger, watermarks)
    added = plan_rules.new_partitions(ledger, watermarks)
    deleted = plan_rules.lost_ranges(ledger, added, watermarks)
    return tuple(
        _partition_coverage(
            ledger,
            partition,
            here,
            # Before the first plan, the start policy has not decided yet.
            begin=ledger.starts.get(partition, added.get(partition, here.low)),
            deleted=deleted.get(partition, SpanSet()),
        )
        for partition, here in sorted(watermarks.partitions.items())
    )


def _partition_coverage(
    ledger: Ledger, partition: int, here: Watermarks, *, begin: int, deleted: SpanSet
) -> PartitionCoverage:
    first = min(begin, here.low)
    planned = ledger.pending.get(partition, SpanSet())
    landed = ledger.landed.get(partition, SpanSet()).difference(planned)
    accepted = ledger.accepted_losses.get(partition, SpanSet()).difference(landed)
    known = ledger.covered_or_planned(partition)
    rest = known.missing_from(Span(first, here.end)) if first < here.end else SpanSet()
    before_start = rest.before(begin)
    states = {
        OffsetState.LOST: accepted.union(deleted),
        OffsetState.UNREAD: rest.difference(before_start).difference(deleted),
        OffsetState.PLANNED: planned,
        OffsetState.BEFORE_START: before_start,
        OffsetState.LANDED: landed,
    }
    has_started = partition in ledger.starts
    return PartitionCoverage(
        partition=partition,
        low_watermark=here.low,
        end=here.end,
        committed_offset=ledger.committed_offset(partition) if has_started else None,
        states={state: spans for state, spans in states.items() if spans},
    )

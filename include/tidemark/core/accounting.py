"""What became of a plan's offsets: a record in the table, or a gap; every one of them is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from tidemark.core.errors import OverfullRange
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeCount:
    """What landed of one range; `records + gaps` is its size.

    Attributes:
        partition: Partition number.
        start: First offset.
        end: Next offset after the range.
        records: Records in the data table.
        unproven_gaps: Gaps that only the engine's reader vouches for: Kafka had deleted those
            offsets when a second reader looked.
    """

    partition: int
    start: int
    end: int
    records: int
    unproven_gaps: int = 0

    @property
    def gaps(self) -> int:
        """Offsets that no reader sees: compacted, aborted, or transaction markers (S6)."""
        return self.end - self.start - self.records


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A plan's commit as the data table's own log shows it (I5).

    Attributes:
        sequence: The plan's number, which is the transaction version.
        table_version: Version of the data table that the commit made.
        counts: One for each range, by partition and start: the planned ranges as the table tells
            them; once accounted, without offsets that hold a record and were not landed.
    """

    sequence: int
    table_version: int
    counts: tuple[RangeCount, ...]

    @classmethod
    def of(cls, plan: Plan, table_version: int, records: Mapping[int, int]) -> Self:
        """The landing of a plan.

        Args:
            plan: The plan.
            table_version: Version of the data table.
            records: Records found, by index of the planned range; none where it is missing.

        Raises:
            OverfullRange: More records than the range has offsets.
        """
        for index, planned in enumerate(plan.ranges):
            if records.get(index, 0) > planned.span.size:
                raise OverfullRange(
                    pipeline=plan.pipeline,
                    sequence=plan.sequence,
                    partition=planned.partition,
                    offsets=planned.span.size,
                    records=records[index],
                )
        counts = (
            RangeCount(
                partition=planned.partition,
                start=planned.start,
                end=planned.end,
                records=records.get(index, 0),
            )
            for index, planned in enumerate(plan.ranges)
        )
        return cls(sequence=plan.sequence, table_version=table_version, counts=tuple(counts))

    @property
    def records(self) -> int:
        """Records that the plan landed."""
        return sum(count.records for count in self.counts)

    @property
    def gaps(self) -> int:
        """Offsets of the plan that hold no record."""
        return sum(count.gaps for count in self.counts)

    def by_partition(self) -> Mapping[int, Mapping[str, int]]:
        """Records and gaps of each partition, over all its ranges, as plain values."""
        told: dict[int, dict[str, int]] = {}
        for count in self.counts:
            here = told.setdefault(count.partition, {"records": 0, "gaps": 0, "unproven_gaps": 0})
            here["records"] += count.records
            here["gaps"] += count.gaps
            here["unproven_gaps"] += count.unproven_gaps
        return told

    def with_unproven_gaps(self) -> Self:
        """The same, where no second reader can look at a gap any more."""
        counts = tuple(replace(count, unproven_gaps=count.gaps) for count in self.counts)
        return replace(self, counts=counts)

    def spans(self) -> Mapping[int, SpanSet]:
        """Offsets that are accounted for, by partition."""
        return spans_by_partition(
            (each.partition, Span(each.start, each.end)) for each in self.counts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEvidence:
    """What a second reader saw where a plan left no rows.

    Attributes:
        gaps: Offsets of the plan without a row, by partition.
        visible: Those of them at which Kafka shows a record, by partition.
        deleted: Those of them that Kafka has deleted, so that nobody can look, by partition.
    """

    gaps: Mapping[int, SpanSet]
    visible: Mapping[int, SpanSet]
    deleted: Mapping[int, SpanSet]

    def with_deleted_as_missed(self) -> GapEvidence:
        """The same, where nobody vouches for offsets that Kafka has deleted: they were missed."""
        missed = {
            partition: self.visible.get(partition, SpanSet()).union(
                self.deleted.get(partition, SpanSet())
            )
            for partition in {*self.visible, *self.deleted}
        }
        return GapEvidence(gaps=self.gaps, visible=missed, deleted={})

    @property
    def missed(self) -> int:
        """Number of records that the plan should have landed and did not."""
        return sum(spans.size for spans in self.visible.values())


def apply_gap_evidence(landing: Landing, evidence: GapEvidence) -> Landing:
    """The landing with every offset told: records and gaps, and no offset that was missed.

    An offset at which Kafka shows a record that is not in the table is no gap: it drops out of the
    landing, stays unread, and the committed offset does not pass it (I3).
    """
    counts = []
    for count in landing.counts:
        whole = Span(count.start, count.end)
        gaps = evidence.gaps.get(count.partition, SpanSet())
        deleted = evidence.deleted.get(count.partition, SpanSet())
        for span in evidence.visible.get(count.partition, SpanSet()).missing_from(whole):
            counts.append(
                replace(
                    count,
                    start=span.start,
                    end=span.end,
                    records=span.size - gaps.overlap_size(span),
                    unproven_gaps=deleted.overlap_size(span),
                )
            )
    return replace(landing, counts=tuple(counts))

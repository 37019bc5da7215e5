"""Accounts for every offset of a plan: each is a record in the data table or a proven gap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from tidemark.core.errors import OverfullRange
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeCount:
    """Number of records and gaps in one landed range; `records + gaps` is its size.

    Attributes:
        partition: Partition number.
        start: First offset.
        end: Next offset after the range.
        records: Number of records in the data table.
        unproven_gaps: Number of gaps that a second reader could not confirm, because Kafka had
            deleted the offsets.
        leader_epoch: Kafka's leader epoch of the partition before the records were read; None if
            unknown.
    """

    partition: int
    start: int
    end: int
    records: int
    unproven_gaps: int = 0
    leader_epoch: int | None = None

    @property
    def gaps(self) -> int:
        """Number of offsets without a visible record: compacted, aborted or markers (S6)."""
        return self.end - self.start - self.records


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A plan's commit as the data table's own log shows it (I5).

    Attributes:
        sequence: Plan number, which is also the Delta transaction version.
        table_version: Version of the data table that the commit created.
        counts: Counts of each range, by partition and start. `apply_gap_evidence` removes
            offsets with a record that did not land.
    """

    sequence: int
    table_version: int
    counts: tuple[RangeCount, ...]

    @classmethod
    def of(cls, plan: Plan, table_version: int, records: Mapping[int, int]) -> Self:
        """Build the landing of a plan from record counts.

        Args:
            plan: The plan.
            table_version: Version of the data table.
            records: Number of records by index of the planned range; a missing index counts as 0.

        Raises:
            OverfullRange: A range has more records than offsets.
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
                leader_epoch=planned.leader_epoch,
            )
            for index, planned in enumerate(plan.ranges)
        )
        return cls(sequence=plan.sequence, table_version=table_version, counts=tuple(counts))

    @property
    def records(self) -> int:
        """Number of records that the plan landed."""
        return sum(count.records for count in self.counts)

    @property
    def gaps(self) -> int:
        """Number of gaps in the plan's ranges."""
        return sum(count.gaps for count in self.counts)

    def by_partition(self) -> Mapping[int, Mapping[str, int]]:
        """Return the number of records and gaps of each partition, as plain values."""
        totals: dict[int, dict[str, int]] = {}
        for count in self.counts:
            total = totals.setdefault(
                count.partition, {"records": 0, "gaps": 0, "unproven_gaps": 0}
            )
            total["records"] += count.records
            total["gaps"] += count.gaps
            total["unproven_gaps"] += count.unproven_gaps
        return totals

    def with_unproven_gaps(self) -> Self:
        """Return a copy in which every gap is unproven."""
        counts = tuple(replace(count, unproven_gaps=count.gaps) for count in self.counts)
        return replace(self, counts=counts)

    @property
    def leader_epochs(self) -> Mapping[int, int]:
        """Kafka's leader epoch before the read by partition, without unknown ones."""
        return {
            count.partition: count.leader_epoch
            for count in self.counts
            if count.leader_epoch is not None
        }

    def spans(self) -> Mapping[int, SpanSet]:
        """Return the accounted offsets of each partition."""
        return spans_by_partition(
            (each.partition, Span(each.start, each.end)) for each in self.counts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEvidence:
    """Result of a second reader at the offsets of a plan without a row.

    Attributes:
        gaps: Offsets of the plan without a row, by partition.
        visible: Offsets of `gaps` at which Kafka has a visible record, by partition.
        deleted: Offsets of `gaps` that Kafka has deleted, so that no reader can check them.
    """

    gaps: Mapping[int, SpanSet]
    visible: Mapping[int, SpanSet]
    deleted: Mapping[int, SpanSet]

    def with_deleted_as_missed(self) -> GapEvidence:
        """Return a copy in which the deleted offsets count as missed records."""
        missed = {
            partition: self.visible.get(partition, SpanSet()).union(
                self.deleted.get(partition, SpanSet())
            )
            for partition in {*self.visible, *self.deleted}
        }
        return GapEvidence(gaps=self.gaps, visible=missed, deleted={})

    @property
    def missed(self) -> int:
        """Number of visible records that the plan did not land."""
        return sum(spans.size for spans in self.visible.values())


def apply_gap_evidence(landing: Landing, evidence: GapEvidence) -> Landing:
    """Return the landing without missed offsets, and with its unproven gaps counted.

    An offset with a visible record that is not in the table is missed. It is not part of the
    landing, so it stays unread, and the committed offset does not pass it (I3).
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

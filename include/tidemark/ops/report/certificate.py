"""The completeness certificate: accounts for every offset of a period, by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.core.accounting import RangeCount
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, union_by_partition
from tidemark.core.plain import record_of
from tidemark.core.plan import PlanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAccount:
    """Account of the offsets of one partition, from the first to the last planned in the period.

    `records`, `gaps`, `landed_outside_period`, `lost` and `missing` add up to the number of
    offsets.

    Attributes:
        partition: Partition number.
        start: First offset that a plan of the period was to land.
        end: Next offset after the last one.
        records: Records that plans of the period landed.
        gaps: Offsets of these plans at which Kafka shows no record.
        unproven_gaps: Number of the gaps that no second reader could check.
        landed_outside_period: Offsets between `start` and `end` that other plans landed.
        lost: Offsets between `start` and `end` with an accepted loss.
        missing: Offsets between `start` and `end` that are not in the table.
        undone: Number of the missing offsets that landed in the period and that an undo or a
            RESTORE removed.
    """

    partition: int
    start: int
    end: int
    records: int
    gaps: int
    unproven_gaps: int
    landed_outside_period: int
    lost: int
    missing: SpanSet
    undone: int

    def as_record(self) -> dict[str, Any]:
        """Return the account as plain values, with the number of offsets."""
        return record_of(self, offsets=self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedPlan:
    """A plan that landed in the period and still has rows in the table.

    Attributes:
        plan: Plan number.
        kind: Kind of the plan.
        landed_at: Time of the first record of its landing.
        records: Records of its current rows.
        gaps: Gaps in the ranges of its current rows.
    """

    plan: int
    kind: PlanKind
    landed_at: datetime
    records: int
    gaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The landed offsets of one pipeline in a period, and whether they are complete.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name; None if the pipeline never planned.
        topic_id: The newest topic id; the certificate covers only this topic.
        since: Start of the period.
        until: End of the period, exclusive.
        partitions: Accounts sorted by partition, without partitions that landed nothing.
        plans: Plans that landed in the period and still have rows, oldest first.
        open_plans: Numbers of the open plans.
        plans_of_other_incarnations: Number of plans of the period that read an earlier topic.
    """

    pipeline: str
    topic: str | None
    topic_id: str | None
    since: datetime
    until: datetime
    partitions: tuple[PartitionAccount, ...]
    plans: tuple[LandedPlan, ...]
    open_plans: tuple[int, ...]
    plans_of_other_incarnations: int

    @property
    def missing(self) -> int:
        """Number of missing offsets."""
        return sum(each.missing.size for each in self.partitions)

    @property
    def is_complete(self) -> bool:
        """Whether every offset between the first and the last of the period is accounted for.

        A period without landings is not complete. Neither is a period in which an earlier topic
        landed, because the certificate does not cover its offsets.
        """
        return bool(self.partitions) and self.missing == 0 and self.plans_of_other_incarnations == 0

    def total(self, name: str) -> int:
        """Return the sum of a figure over all partitions."""
        return sum(getattr(each, name) for each in self.partitions)

    def as_record(self) -> dict[str, Any]:
        """Return the certificate as plain values, for `--json`."""
        totals = ("records", "gaps", "unproven_gaps", "lost", "undone")
        return {
            **record_of(self, complete=self.is_complete, missing=self.missing),
            **{name: self.total(name) for name in totals},
        }


def certify(
    ledger: Ledger, landed_at: Mapping[int, datetime], since: datetime, until: datetime
) -> Certificate:
    """Return the certificate of a period.

    Args:
        ledger: The pipeline's complete ledger.
        landed_at: The time at which each landed plan was first recorded as landed.
        since: Start of the period.
        until: End of the period, exclusive.
    """
    in_period = [
        record
        for sequence, record in sorted(ledger.plans.items())
        if sequence in landed_at
        # Not plans that landed after the ledger was read.
        and (
            record.held_now
            # Also plans whose rows were removed since.
            or record.cancelled_by  # fence: certificate-has-restored-plans
        )
        and since <= landed_at[sequence] < until
    ]
    covered = [record for record in in_period if record.plan.topic_id == ledger.topic_id]
    partitions = sorted({planned.partition for record in covered for planned in record.plan.ranges})
    return Certificate(
        pipeline=ledger.pipeline,
        topic=ledger.topic,
        topic_id=ledger.topic_id,
        since=since,
        until=until,
        partitions=tuple(_account(ledger, covered, partition) for partition in partitions),
        plans=tuple(
            _landed_plan(record, landed_at[record.plan.sequence])
            for record in covered
            if _counts(record)
        ),
        open_plans=tuple(record.plan.sequence for record in ledger.open_plans()),
        plans_of_other_incarnations=len(in_period) - len(covered),
    )


def _counts(record: PlanRecord) -> tuple[RangeCount, ...]:
    return record.held_now.counts if record.held_now else ()


def _account(ledger: Ledger, records: list[PlanRecord], partition: int) -> PartitionAccount:
    counts = [
        count for record in records for count in _counts(record) if count.partition == partition
    ]
    # The planned offsets, not the landed ones: removed rows at the end are missing as well.
    planned = union_by_partition(record.plan.spans() for record in records)[partition]
    span = Span(planned.spans[0].start, planned.spans[-1].end)
    landed = ledger.landed.get(partition, SpanSet()).within(span)
    lost = ledger.lost.get(partition, SpanSet()).within(span)
    landed_in_period = SpanSet.of(Span(count.start, count.end) for count in counts)
    missing = landed.union(lost).missing_from(span)
    undone = union_by_partition(
        record.plan.spans() for record in records if record.landed_originally is None
    )
    return PartitionAccount(
        partition=partition,
        start=span.start,
        end=span.end,
        records=sum(count.records for count in counts),
        gaps=sum(count.gaps for count in counts),
        unproven_gaps=sum(count.unproven_gaps for count in counts),
        landed_outside_period=landed.difference(landed_in_period).size,
        lost=lost.size,
        missing=missing,
        undone=missing.intersection(undone.get(partition, SpanSet())).size,
    )


def _landed_plan(record: PlanRecord, landed_at: datetime) -> LandedPlan:
    counts = _counts(record)
    return LandedPlan(
        plan=record.plan.sequence,
        kind=record.plan.kind,
        landed_at=landed_at,
        records=sum(count.records for count in counts),
        gaps=sum(count.gaps for count in counts),
    )

"""The completeness certificate: what became of every offset of a period, by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, union_by_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAccount:
    """What became of the offsets of one partition, from the first of the period to the last.

    Attributes:
        partition: Partition number.
        start: First offset that a plan of the period was to land.
        end: Next offset after the last one.
        records: Records that plans of the period landed.
        gaps: Offsets of theirs at which Kafka shows no record.
        unproven_gaps: Gaps that a second reader could not look at any more.
        otherwise: Offsets in between that plans of other times landed.
        lost: Offsets in between whose loss somebody accepted.
        missing: Offsets in between of which the table has nothing.
        undone: So many of these had landed in the period, and were taken out again: by an undo or
            a RESTORE.
    """

    partition: int
    start: int
    end: int
    records: int
    gaps: int
    unproven_gaps: int
    otherwise: int
    lost: int
    missing: SpanSet
    undone: int

    def as_record(self) -> dict[str, Any]:
        """The account as plain values."""
        return {
            "partition": self.partition,
            "start": self.start,
            "end": self.end,
            "offsets": self.end - self.start,
            "records": self.records,
            "gaps": self.gaps,
            "unproven_gaps": self.unproven_gaps,
            "landed_otherwise": self.otherwise,
            "lost": self.lost,
            "missing": [[span.start, span.end] for span in self.missing],
            "undone": self.undone,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedPlan:
    """A plan that landed in the period, and holds rows still."""

    sequence: int
    kind: str
    landed_at: datetime
    records: int
    gaps: int

    def as_record(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "plan": self.sequence,
            "kind": self.kind,
            "landed_at": self.landed_at.isoformat(),
            "records": self.records,
            "gaps": self.gaps,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What one pipeline has landed in a period, and whether it is complete.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic; None if nothing has ever been planned.
        topic_id: The incarnation that it is about, the newest.
        since: Begin of the period.
        until: Its end, which is not in it.
        partitions: By number; those of which nothing landed in the period are left out.
        plans: What landed in the period and is there still, oldest first.
        open_plans: Plans that may land still.
        other_incarnations: Plans of the period of topics that were there before.
    """

    pipeline: str
    topic: str | None
    topic_id: str | None
    since: datetime
    until: datetime
    partitions: tuple[PartitionAccount, ...]
    plans: tuple[LandedPlan, ...]
    open_plans: tuple[int, ...]
    other_incarnations: int

    @property
    def missing(self) -> int:
        """Offsets of which the table has nothing."""
        return sum(each.missing.size for each in self.partitions)

    @property
    def is_complete(self) -> bool:
        """Whether every offset between the first and the last of the period is accounted for.

        Where nothing landed there is nothing to account for, and nothing is certified; nor is a
        period in which another incarnation landed, whose offsets nobody has added up.
        """
        return bool(self.partitions) and self.missing == 0 and self.other_incarnations == 0

    def total(self, name: str) -> int:
        """A figure of all partitions together."""
        return sum(getattr(each, name) for each in self.partitions)

    def as_record(self) -> dict[str, Any]:
        """The certificate as plain values, for `--json`."""
        return {
            "pipeline": self.pipeline,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
            "complete": self.is_complete,
            "records": self.total("records"),
            "gaps": self.total("gaps"),
            "unproven_gaps": self.total("unproven_gaps"),
            "lost": self.total("lost"),
            "missing": self.missing,
            "undone": self.total("undone"),
            "open_plans": list(self.open_plans),
            "plans_of_other_incarnations": self.other_incarnations,
            "partitions": [each.as_record() for each in self.partitions],
            "plans": [each.as_record() for each in self.plans],
        }


def certify(
    ledger: Ledger, landed_at: Mapping[int, datetime], since: datetime, until: datetime
) -> Certificate:
    """Account for what landed in a period.

    Args:
        ledger: The pipeline's ledger, read whole.
        landed_at: When each plan was first recorded as landed, of those that ever were.
        since: Begin of the period.
        until: Its end.
    """
    in_period = [
        record
        for sequence, record in sorted(ledger.plans.items())
        # Whatever took its rows out since. One that landed after the ledger was read is open in it.
        if sequence in landed_at
        and not record.is_open  # fence: certificate-has-restored-plans
        and since <= landed_at[sequence] < until
    ]
    mine = [record for record in in_period if record.plan.topic_id == ledger.topic_id]
    partitions = sorted({planned.partition for record in mine for planned in record.plan.ranges})
    return Certificate(
        pipeline=ledger.pipeline,
        topic=ledger.topic,
        topic_id=ledger.topic_id,
        since=since,
        until=until,
        partitions=tuple(_account(ledger, mine, partition) for partition in partitions),
        plans=tuple(
            _landed(record, landed_at[record.plan.sequence]) for record in mine if _counts(record)
        ),
        open_plans=tuple(record.plan.sequence for record in ledger.open_plans()),
        other_incarnations=len(in_period) - len(mine),
    )


def _counts(record: PlanRecord) -> tuple[Any, ...]:
    return record.held_now.counts if record.held_now else ()


def _account(ledger: Ledger, records: list[PlanRecord], partition: int) -> PartitionAccount:
    counts = [
        count for record in records for count in _counts(record) if count.partition == partition
    ]
    # What they were to land, not what is left of it: an end that was taken out is missing as well.
    planned = union_by_partition(record.plan.spans() for record in records)[partition]
    whole = Span(planned.spans[0].start, planned.spans[-1].end)
    landed = ledger.landed.get(partition, SpanSet()).within(whole)
    lost = ledger.accepted_losses.get(partition, SpanSet()).within(whole).difference(landed)
    here = SpanSet.of(Span(count.start, count.end) for count in counts)
    missing = landed.union(lost).missing_from(whole)
    undone = union_by_partition(
        record.plan.spans() for record in records if record.landed_originally is None
    )
    return PartitionAccount(
        partition=partition,
        start=whole.start,
        end=whole.end,
        records=sum(count.records for count in counts),
        gaps=sum(count.gaps for count in counts),
        unproven_gaps=sum(count.unproven_gaps for count in counts),
        otherwise=landed.difference(here).size,
        lost=lost.size,
        missing=missing,
        undone=missing.intersection(undone.get(partition, SpanSet())).size,
    )


def _landed(record: PlanRecord, landed_at: datetime) -> LandedPlan:
    counts = _counts(record)
    return LandedPlan(
        sequence=record.plan.sequence,
        kind=str(record.plan.kind),
        landed_at=landed_at,
        records=sum(count.records for count in counts),
        gaps=sum(count.gaps for count in counts),
    )

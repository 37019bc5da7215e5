"""What the control table says about one pipeline: its events, folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from tidemark.core.events import Abandoned, Adopted, ControlEvent, Landed, Planned, Started
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Landing, Plan, PlanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One plan and what became of it.

    Attributes:
        plan: The plan as recorded.
        requesters: Who asked for it: first its owner, then the runs that took it over.
        landing: The plan's commit; None if it has not landed.
        abandoned: Why it was given up; None if it was not.
    """

    plan: Plan
    requesters: tuple[str, ...]
    landing: Landing | None = None
    abandoned: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the plan may still land."""
        return self.landing is None and self.abandoned is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The state of one pipeline at one event number.

    Attributes:
        pipeline: Pipeline name.
        event_number: Number of the newest event read; 0 when there is none. The next writer must
            write the one after it, or somebody else was first.
        cluster_id: Cluster that the offsets belong to; None before the first event.
        topic: Topic that the offsets belong to; None before the first event.
        topic_id: Incarnation of the topic that the offsets belong to; None before the first event.
        starts: Where the pipeline began, by partition.
        plans: By sequence number, oldest first.
        landed: Offsets that landed, by partition.
        pending: Offsets of open plans, by partition.
    """

    pipeline: str
    event_number: int = 0
    cluster_id: str | None = None
    topic: str | None = None
    topic_id: str | None = None
    starts: Mapping[int, int] = field(default_factory=dict)
    plans: Mapping[int, PlanRecord] = field(default_factory=dict)
    landed: Mapping[int, SpanSet] = field(default_factory=dict)
    pending: Mapping[int, SpanSet] = field(default_factory=dict)

    @classmethod
    def fold(cls, pipeline: str, history: Iterable[tuple[int, list[ControlEvent]]]) -> Self:
        """The ledger after `history`, which is oldest first, as `events.decode` returns it."""
        number = 0
        identity: tuple[str | None, str | None, str | None] = (None, None, None)
        starts: dict[int, int] = {}
        plans: dict[int, PlanRecord] = {}
        for number, events in history:  # noqa: B007  the last number is kept
            for event in events:
                match event:
                    case Started():
                        identity = (event.cluster_id, event.topic, event.topic_id)
                        starts.update(event.offsets)
                    case Planned(plan=plan):
                        plans[plan.sequence] = PlanRecord(
                            plan=plan, requesters=(plan.requested_by,)
                        )
                    case Adopted():
                        plans[event.sequence] = _adopt(plans[event.sequence], event)
                    case Abandoned():
                        plans[event.sequence] = replace(
                            plans[event.sequence], abandoned=event.reason
                        )
                    case Landed(plan=plan):
                        plans[plan.sequence] = replace(plans[plan.sequence], landing=event.landing)
        return cls(
            pipeline=pipeline,
            event_number=number,
            cluster_id=identity[0],
            topic=identity[1],
            topic_id=identity[2],
            starts=starts,
            plans=plans,
            landed=_spans(record.plan for record in plans.values() if record.landing),
            pending=_spans(record.plan for record in plans.values() if record.is_open),
        )

    @property
    def next_sequence(self) -> int:
        """Number of the plan after the newest."""
        return max(self.plans, default=0) + 1

    @property
    def epoch(self) -> int:
        """Epoch that new plans carry."""
        return 0

    def taken(self, partition: int) -> SpanSet:
        """Offsets that landed or are in an open plan; a new plan avoids them (I2)."""
        return self.landed.get(partition, SpanSet()).union(self.pending.get(partition, SpanSet()))

    def committed_offset(self, partition: int) -> int:
        """The end of the contiguous landed coverage (S3); KeyError for an unknown partition."""
        return self.landed.get(partition, SpanSet()).contiguous_end(self.starts[partition])

    def committed_after(self, plan: Plan) -> Mapping[int, int]:
        """Committed offsets of a plan's partitions as they will be once it has landed."""
        return {
            partition: self.landed.get(partition, SpanSet())
            .union(spans)
            .contiguous_end(self.starts[partition])
            for partition, spans in plan.spans().items()
        }

    def open_plans(self) -> list[PlanRecord]:
        """Plans that may still land, oldest first."""
        return [record for record in self.plans.values() if record.is_open]

    def open_plan(self, kind: PlanKind) -> PlanRecord | None:
        """The open plan of a chain; the protocol keeps it to one."""
        return next((record for record in self.open_plans() if record.plan.kind is kind), None)

    def plan_of(self, requester: str) -> PlanRecord | None:
        """The plan that a run asked for or took over, unless it was given up."""
        return next(
            (
                record
                for record in self.plans.values()
                if requester in record.requesters and record.abandoned is None
            ),
            None,
        )


def _adopt(record: PlanRecord, event: Adopted) -> PlanRecord:
    return replace(record, requesters=(*record.requesters, event.requested_by))


def _spans(plans: Iterable[Plan]) -> Mapping[int, SpanSet]:
    by_partition: dict[int, list[Span]] = {}
    for plan in plans:
        for planned in plan.ranges:
            by_partition.setdefault(planned.partition, []).append(planned.span)
    return {partition: SpanSet.of(spans) for partition, spans in by_partition.items()}

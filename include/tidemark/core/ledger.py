"""What the control table says about one pipeline: its events, folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar, assert_never

from tidemark.core.accounting import Landing
from tidemark.core.events import (
    Abandoned,
    Adopted,
    BackfillRequested,
    ControlEvent,
    Landed,
    LossAccepted,
    NewEpoch,
    NewIncarnation,
    Planned,
    Started,
    Superseded,
    Undone,
    UndoStarted,
)
from tidemark.core.ledger_summary import ChainHead, SettledTotals
from tidemark.core.offsets import SpanSet, union_by_partition
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.watermarks import Position, furthest_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One plan and what became of it.

    Attributes:
        plan: The plan as recorded.
        requesters: Who asked for it: first its owner, then the runs that took it over.
        held_now: The plan's commit, without what later plans have replaced of it; None if it has
            not landed.
        landed_originally: The same with what was replaced; kept while it is being taken out.
        superseded: Plans that were made to replace rows of it, and what they leave, oldest first.
        abandoned: Why it was given up, or its rows taken out again; None if they were not.
        undoing: Whether its rows are being taken out, so that some may still be there.
        undone_version: A version of the data table without its rows, if somebody undid it.
    """

    plan: Plan
    requesters: tuple[str, ...]
    held_now: Landing | None = None
    landed_originally: Landing | None = None
    superseded: tuple[Superseded, ...] = ()
    abandoned: str | None = None
    undoing: bool = False
    undone_version: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the plan may still land."""
        return self.held_now is None and self.abandoned is None

    @property
    def has_landed(self) -> bool:
        """Whether it has ever landed: taken out again since or not, but by no RESTORE."""
        return self.landed_originally is not None or self.undone_version is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The state of one pipeline at one event number.

    Read whole, every plan is in `plans`. Read as a summary, settled plans are added up in
    `settled` and in nothing else; whatever the properties and methods say is the same.

    Attributes:
        pipeline: Pipeline name.
        event_number: Number of the newest event; 0 when there is none. The next writer must write
            the one after it, or somebody else was first.
        missing_events: Number of events that the control table has recorded and does not hold,
            and that no repair has made up for.
        cluster_id: Cluster that the offsets belong to; None before the first event.
        topic: Topic that the offsets belong to; None before the first event.
        topic_id: Incarnation of the topic that the offsets belong to; None before the first event.
        starts: Where the pipeline began, by partition.
        start_epochs: Kafka's leader epoch when it began, by partition, as far as it is known.
        start_reason: Where its offsets came from when it began, if a person said.
        plans: By sequence number, oldest first; those of `settled` are not among them.
        settled: Plans that are over, added up; nothing if the ledger was read whole.
        landed: Offsets of this incarnation that landed, gaps included, by partition.
        accepted_losses: Offsets of this incarnation whose loss was accepted, by partition.
        pending: Offsets of open plans and of those being undone, by partition.
        epoch: Epoch that new plans carry.
        epoch_version: Version of the data table that the epoch began with; -1 for the first.
        last_sequence: Highest plan number that was ever taken.
    """

    pipeline: str
    event_number: int = 0
    missing_events: int = 0
    cluster_id: str | None = None
    topic: str | None = None
    topic_id: str | None = None
    starts: Mapping[int, int] = field(default_factory=dict)
    start_epochs: Mapping[int, int] = field(default_factory=dict)
    start_reason: str | None = None
    plans: Mapping[int, PlanRecord] = field(default_factory=dict)
    settled: SettledTotals = field(default_factory=SettledTotals)
    landed: Mapping[int, SpanSet] = field(default_factory=dict)
    accepted_losses: Mapping[int, SpanSet] = field(default_factory=dict)
    pending: Mapping[int, SpanSet] = field(default_factory=dict)
    epoch: int = 0
    epoch_version: int = -1
    last_sequence: int = 0

    @classmethod
    def fold(
        cls,
        pipeline: str,
        history: Iterable[tuple[int, list[ControlEvent]]],
        newest: int = 0,
        *,
        settled: SettledTotals | None = None,
        present: int | None = None,
    ) -> Self:
        """The ledger after some events.

        Args:
            pipeline: Pipeline name.
            history: Events by number, oldest first, as `event_rows.decode` returns them.
            newest: Number of the newest event that the control table's log has seen.
            settled: Plans that are not in `history`.
            present: How many events there are; those of `history` if None.
        """
        settled = settled or SettledTotals()
        ledger: Self = cls(pipeline=pipeline, settled=settled)
        plans: dict[int, PlanRecord] = {}
        numbers: list[int] = []
        made_up = 0
        for number, events in history:
            numbers.append(number)
            for event in events:
                ledger = _told(ledger, event)
                _settle(plans, event)
                made_up += event.missing_events if isinstance(event, NewEpoch) else 0
        newest = max([newest, *numbers])
        ledger = replace(
            ledger,
            event_number=newest,
            missing_events=newest - made_up - (len(numbers) if present is None else present),
        )
        return ledger._with(plans)

    def _with(self, plans: Mapping[int, PlanRecord]) -> Self:
        """The same with these plans, and all that follows from them."""
        plans = {number: _with_what_is_left(record, plans) for number, record in plans.items()}
        sequences = [chain.sequence for chain in self.settled.chain_heads.values()]
        records = [r for r in plans.values() if r.plan.topic_id == self.topic_id]
        told = replace(self, plans=plans)
        return replace(
            told,
            landed=told.landed_of(self.topic_id),
            pending=union_by_partition(
                record.plan.spans() if record.is_open else _left(record, plans).spans()
                for record in records
                if record.is_open or record.undoing
            ),
            last_sequence=max([self.last_sequence, *sequences, *plans]),
        )

    def with_landing(self, plan: Plan, landing: Landing) -> Self:
        """The ledger as it will be once it is recorded that one of its plans has landed."""
        plans = dict(self.plans)
        _settle(plans, Landed(plan=plan, landing=landing, committed={}))
        return self._with(plans)

    def landed_of(self, topic_id: str | None) -> Mapping[int, SpanSet]:
        """Offsets of some incarnation that landed, gaps included, by partition."""
        added_up = {
            partition: spans
            for (of, partition), spans in self.settled.landed.items()
            if of == topic_id
        }
        landings = [
            record.held_now
            for record in self.plans.values()
            if record.plan.topic_id == topic_id  # fence: landed-offsets-of-one-topic
        ]
        return union_by_partition([added_up, *(landing.spans() for landing in landings if landing)])

    @property
    def next_sequence(self) -> int:
        """Number of the plan after the newest."""
        return self.last_sequence + 1

    def first_landed_offset(self, topic_id: str, partition: int, otherwise: int) -> int:
        """Where a partition of some incarnation began: its first landed offset, if any landed."""
        landed = [self.settled.landed.get((topic_id, partition), SpanSet())]
        for record in self.plans.values():
            if record.held_now and record.plan.topic_id == topic_id:
                landed.append(record.held_now.spans().get(partition, SpanSet()))
        return min((span.start for spans in landed for span in spans), default=otherwise)

    def covered(self, partition: int) -> SpanSet:
        """Offsets that nobody has to read any more: landed, gaps, or an accepted loss."""
        return self.landed.get(partition, SpanSet()).union(
            self.accepted_losses.get(partition, SpanSet())
        )

    def covered_or_planned(self, partition: int) -> SpanSet:
        """Offsets that are covered or in an open plan; a new plan avoids them (I2)."""
        return self.covered(partition).union(
            self.pending.get(partition, SpanSet())  # fence: no-two-plans-over-one-offset
        )

    def replaceable(self, partition: int) -> SpanSet:
        """Offsets whose rows a new plan may replace: landed, and in no plan that is open."""
        return self.landed.get(partition, SpanSet()).difference(
            self.pending.get(partition, SpanSet())
        )

    def committed_offset(self, partition: int) -> int:
        """The end of the contiguous coverage (S3); KeyError for an unknown partition."""
        return self.covered(partition).contiguous_end(self.starts[partition])

    def committed_with(self, more: Mapping[int, SpanSet]) -> Mapping[int, int]:
        """Committed offsets of some partitions as they will be once more of them is covered."""
        return {
            partition: self.covered(partition).union(spans).contiguous_end(self.starts[partition])
            for partition, spans in more.items()
        }

    def committed_without(self, less: Mapping[int, SpanSet]) -> Mapping[int, int]:
        """Committed offsets of some partitions as they will be when something has not landed."""
        rest = replace(
            self,
            landed={
                p: spans.difference(less.get(p, SpanSet())) for p, spans in self.landed.items()
            },
        )
        return {p: rest.committed_offset(p) for p in less if p in self.starts}

    def positions(self, kind: PlanKind) -> Mapping[int, Position]:
        """How far a chain has come, by partition: the end of its range that goes furthest.

        The live chain is where it began until something of it has landed.
        """
        landed = [
            (partition, end)
            for (topic_id, partition, of), end in self.settled.ends.items()
            if (topic_id, of) == (self.topic_id, kind)
        ]
        for record in self.plans.values():
            plan = record.plan
            if record.held_now and (plan.topic_id, plan.kind) == (self.topic_id, kind):
                landed += [(planned.partition, planned.position) for planned in plan.ranges]
        started = {
            partition: Position(offset=offset, leader_epoch=self.start_epochs.get(partition))
            for partition, offset in self.starts.items()
            if kind is PlanKind.LIVE
        }
        return {**started, **furthest_positions(landed)}

    def chain_head(self, kind: PlanKind) -> ChainHead:
        """The newest plan of a chain that is not open, and the newest table version it made.

        0 and -1 if there is none in this epoch.
        """
        known = self.settled.chain_heads.get(
            (self.epoch, kind), ChainHead(sequence=0, table_version=-1)
        )
        over = [
            record
            for record in self.plans.values()
            if record.plan.kind is kind and record.plan.epoch == self.epoch and not record.is_open
        ]
        versions = (record.held_now.table_version for record in over if record.held_now)
        return ChainHead(
            sequence=max([known.sequence, *(record.plan.sequence for record in over)]),
            table_version=max([known.table_version, *versions]),
        )

    @property
    def last_landed_sequence(self) -> int | None:
        """Number of the newest plan that landed."""
        landed = [record.plan.sequence for record in self.plans.values() if record.held_now]
        added_up = (chain.sequence for chain in self.settled.chain_heads.values())
        return max([*landed, *added_up], default=None)

    def landed_sequences(self) -> frozenset[int]:
        """Numbers of the plans that have landed, whatever became of their rows; read whole."""
        return frozenset(number for number, record in self.plans.items() if record.has_landed)

    @property
    def records(self) -> int:
        """How many records landed."""
        landings = (record.held_now for record in self.plans.values())
        return self.settled.records + sum(landing.records for landing in landings if landing)

    def open_plans(self) -> list[PlanRecord]:
        """Plans that may still land, oldest first."""
        return [record for record in self.plans.values() if record.is_open]

    def open_plan(self, kind: PlanKind) -> PlanRecord | None:
        """The open plan of a chain; the protocol keeps it to one."""
        return next((record for record in self.open_plans() if record.plan.kind is kind), None)

    def plan_requested_by(self, requester: str) -> int | None:
        """Number of the newest plan that a run asked for or took over, of those not given up."""
        asked = [
            record.plan.sequence
            for record in self.plans.values()
            if requester in record.requesters and record.abandoned is None
        ]
        if requester in self.settled.requesters:
            asked.append(self.settled.requesters[requester])
        return max(asked, default=None)


L = TypeVar("L", bound=Ledger)


def _told(ledger: L, event: ControlEvent) -> L:
    """The ledger with what one event says about the pipeline as a whole."""
    match event:
        case Started():
            return replace(
                ledger,
                cluster_id=event.cluster_id,
                topic=event.topic,
                topic_id=event.topic_id,
                starts={**ledger.starts, **event.offsets},
                start_epochs={**ledger.start_epochs, **event.leader_epochs},
                start_reason=event.reason or ledger.start_reason,
            )
        case NewIncarnation():
            # Offsets of another incarnation say nothing about this one.
            return replace(
                ledger,
                cluster_id=event.cluster_id,
                topic=event.topic,
                topic_id=event.topic_id,
                starts=dict(event.offsets),
                start_epochs={},
                start_reason=event.reason,
                accepted_losses={},
            )
        case LossAccepted():
            return replace(
                ledger, accepted_losses=union_by_partition([ledger.accepted_losses, event.lost])
            )
        case NewEpoch():
            return replace(
                ledger,
                epoch=event.epoch,  # fence: plans-carry-new-epoch
                epoch_version=event.table_version,
                last_sequence=event.sequence,
            )
        case (
            BackfillRequested()
            | Planned()
            | Superseded()
            | Adopted()
            | Abandoned()
            | Landed()
            | UndoStarted()
            | Undone()
        ):
            return ledger
        case _:
            assert_never(event)


def _settle(plans: dict[int, PlanRecord], event: ControlEvent) -> None:
    """Note what one event says about a plan; one whose plan was lost says nothing."""
    match event:
        case Planned(plan=plan):
            plans[plan.sequence] = PlanRecord(plan=plan, requesters=(plan.requested_by,))
        case Superseded():
            if record := plans.get(event.sequence):
                plans[event.sequence] = replace(record, superseded=(*record.superseded, event))
        case Adopted():
            if record := plans.get(event.sequence):
                requesters = (*record.requesters, event.requested_by)
                plans[event.sequence] = replace(record, requesters=requesters)
        case Abandoned() | UndoStarted() | Undone():
            if record := plans.get(event.sequence):
                plans[event.sequence] = replace(
                    record,
                    held_now=None,
                    landed_originally=record.landed_originally
                    if isinstance(event, UndoStarted)
                    else None,
                    abandoned=event.reason,
                    undoing=isinstance(event, UndoStarted),
                    undone_version=event.table_version if isinstance(event, Undone) else None,
                )
        case Landed(plan=plan):
            plans[plan.sequence] = replace(
                plans[plan.sequence],
                held_now=event.landing,
                landed_originally=event.landing,
                # It says what the plan holds now.
                superseded=(),
                abandoned=None,
                undoing=False,
                undone_version=None,
            )
        case Started() | BackfillRequested() | NewIncarnation() | LossAccepted() | NewEpoch():
            pass
        case _:
            assert_never(event)


def _with_what_is_left(record: PlanRecord, plans: Mapping[int, PlanRecord]) -> PlanRecord:
    """The plan with what it holds now: the newest plan that replaced rows of it says what."""
    if record.landed_originally is None or record.undoing:
        return record
    return replace(record, held_now=_left(record, plans))


def _left(record: PlanRecord, plans: Mapping[int, PlanRecord]) -> Landing:
    """What a plan that has landed holds, or is about to lose."""
    whole = record.landed_originally or Landing(
        sequence=record.plan.sequence, table_version=-1, counts=()
    )
    left = (told.counts for told in reversed(record.superseded) if _has_replaced(plans, told.by))
    return replace(whole, counts=next(left, whole.counts))  # fence: replaced-plan-holds-the-rest


def _has_replaced(plans: Mapping[int, PlanRecord], sequence: int) -> bool:
    """Whether a plan has taken its rows' place. One that is settled has landed."""
    by = plans.get(sequence)
    return by is None or by.has_landed  # fence: only-landed-plans-replace

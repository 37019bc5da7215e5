"""The state of a pipeline, folded from its events in the control table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NewType, Self, TypeVar, assert_never

from tidemark.core.accounting import Landing
from tidemark.core.events import (
    Abandoned,
    Adopted,
    BackfillRequested,
    ControlEvent,
    Landed,
    LossAccepted,
    NewEpoch,
    Planned,
    PublicationDecided,
    RecreationAccepted,
    Started,
    Superseded,
    Undone,
    UndoStarted,
)
from tidemark.core.ledger_summary import ChainHead, SettledTotals
from tidemark.core.offsets import SpanSet, difference_by_partition, union_by_partition
from tidemark.core.origins import PlanOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.publication import NOT_CHECKED
from tidemark.core.watermarks import Position, furthest_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One plan and its current state.

    Attributes:
        plan: The plan as recorded.
        requesters: The first requester, then the runs that took the plan over.
        held_now: The plan's landing, without ranges that later plans replaced. None if the plan
            has not landed, or its rows are being removed or were removed.
        landed_originally: The plan's landing with the replaced ranges; kept during an undo.
        superseded: Events of plans that replace its rows, oldest first.
        cancelled_by: The event that abandoned the plan, or started or completed its undo; None
            without one.
        decision: The effective publication decision; None without one.
        landed_in: The event that started the epoch in which the landing was recorded; None in the
            first epoch. Summaries of the ledger do not have it.
    """

    plan: Plan
    requesters: tuple[PlanOrigin, ...]
    held_now: Landing | None = None
    landed_originally: Landing | None = None
    superseded: tuple[Superseded, ...] = ()
    cancelled_by: Abandoned | UndoStarted | Undone | None = None
    decision: PublicationDecided | None = None
    landed_in: NewEpoch | None = field(default=None, compare=False)

    @property
    def is_open(self) -> bool:
        """Whether the plan may still land."""
        return self.held_now is None and self.cancelled_by is None

    @property
    def unchecked(self) -> Mapping[int, SpanSet]:
        """Landed offsets without a decision, for example offsets that a RESTORE brought back."""
        held = self.held_now.spans() if self.held_now else {}
        return difference_by_partition(held, self.decision.spans if self.decision else {})

    @property
    def whole_decision(self) -> PublicationDecided | None:
        """The effective publication decision; None unless it covers all rows of the plan."""
        return None if self.unchecked else self.decision

    @property
    def publication_status(self) -> str:
        """The status that `whole_decision` decided, or `NOT_CHECKED`."""
        return str(self.whole_decision.status) if self.whole_decision else NOT_CHECKED

    @property
    def has_rows(self) -> bool:
        """Whether the plan holds ranges of the table now: not undone, not wholly replaced."""
        return bool(self.held_now and self.held_now.counts)

    @property
    def undoing(self) -> bool:
        """Whether an undo is removing its rows, so that some may still be in the table."""
        return isinstance(self.cancelled_by, UndoStarted)

    @property
    def undone_version(self) -> int | None:
        """Version of the data table without its rows, after an undo; None after a RESTORE."""
        return self.cancelled_by.table_version if isinstance(self.cancelled_by, Undone) else None

    @property
    def has_landed(self) -> bool:
        """Whether the plan has landed, even if it was undone since; False after a RESTORE."""
        return self.landed_originally is not None or self.undone_version is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The state of one pipeline at one event number.

    A full ledger has every plan in `plans`. A summary may have settled plans only in the totals of
    `settled`. All other attributes and methods return the same for both.

    Attributes:
        pipeline: Pipeline name.
        event_number: Number of the newest event; 0 without events. The next writer must write the
            next number; otherwise another process wrote first.
        missing_events: Number of recorded events that the control table lacks, and that no repair
            has replaced.
        cluster_id: Kafka's id of the cluster; None before the first event.
        topic: Topic name; None before the first event.
        topic_id: Kafka's id of the incarnation of the topic; None before the first event.
        starts: Offset at which the pipeline began, by partition.
        start_epochs: Kafka's leader epoch at that time, by partition; unknown ones are missing.
        start_reason: Origin of the start offsets if an operator gave them.
        plans: Plans by number, oldest first, without those in `settled`.
        settled: Totals of settled plans; empty in a full ledger.
        landed: Landed offsets of this incarnation by partition, including gaps.
        accepted_losses: Offsets of this incarnation whose loss was accepted, by partition.
        pending: Offsets of open plans, and of plans that are being undone, by partition.
        epoch: Epoch of new plans.
        epoch_version: Version of the data table at which the epoch began; -1 for the first epoch.
        last_sequence: Highest plan number in use.
        newest_undo: The undo of this epoch that changed the table last; None without one.
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
    newest_undo: Undone | None = None

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
        """Fold events into a ledger.

        Args:
            pipeline: Pipeline name.
            history: Events by number, oldest first, as `event_rows.decode` returns them.
            newest: Number of the newest event in the control table's log.
            settled: Totals of the plans that are not in `history`.
            present: Number of events in the control table; None for those in `history`.
        """
        settled = settled or SettledTotals()
        ledger: Self = cls(pipeline=pipeline, settled=settled)
        plans: dict[int, PlanRecord] = {}
        numbers: list[int] = []
        replaced_events = 0
        epoch: NewEpoch | None = None
        for number, events in history:
            numbers.append(number)
            epoch = next((each for each in events if isinstance(each, NewEpoch)), epoch)
            for event in events:
                ledger = _with_event(ledger, event)
                _update_plan(plans, event, epoch)
                replaced_events += event.missing_events if isinstance(event, NewEpoch) else 0
        newest = max([newest, *numbers])
        ledger = replace(
            ledger,
            event_number=newest,
            missing_events=newest
            - replaced_events
            - (len(numbers) if present is None else present),
        )
        return ledger._with(plans)

    def _with(self, plans: Mapping[int, PlanRecord]) -> Self:
        """Return a copy with these plans, and the attributes that are derived from them."""
        plans = {number: _with_current_counts(record, plans) for number, record in plans.items()}
        sequences = [chain.sequence for chain in self.settled.chain_heads.values()]
        records = [r for r in plans.values() if r.plan.topic_id == self.topic_id]
        changed = replace(self, plans=plans)
        return replace(
            changed,
            landed=changed.landed_of(self.topic_id),
            pending=union_by_partition(
                record.plan.spans() if record.is_open else _current_landing(record, plans).spans()
                for record in records
                if record.is_open or record.undoing
            ),
            last_sequence=max([self.last_sequence, *sequences, *plans]),
        )

    def with_landing(self, plan: Plan, landing: Landing) -> Ledger:
        """Return the ledger as it will be when the landing of one of its plans is recorded.

        The result is never a `CheckedLedger`: it is a state that no table has yet.
        """
        plans = dict(self.plans)
        epoch = plans[plan.sequence].landed_in
        _update_plan(plans, Landed(plan=plan, landing=landing, committed={}), epoch)
        return self._with(plans)

    def landed_of(self, topic_id: str | None) -> Mapping[int, SpanSet]:
        """Return the landed offsets of an incarnation by partition, including gaps."""
        settled = {
            partition: spans
            for (of, partition), spans in self.settled.landed.items()
            if of == topic_id
        }
        landings = [
            record.held_now
            for record in self.plans.values()
            if record.plan.topic_id == topic_id  # fence: landed-offsets-of-one-topic
        ]
        return union_by_partition([settled, *(landing.spans() for landing in landings if landing)])

    @property
    def next_sequence(self) -> int:
        """Number of the next plan."""
        return self.last_sequence + 1

    def first_landed_offset(self, topic_id: str, partition: int, otherwise: int) -> int:
        """Return the lowest landed offset of a partition of an incarnation, or `otherwise`."""
        landed = [self.settled.landed.get((topic_id, partition), SpanSet())]
        for record in self.plans.values():
            if record.held_now and record.plan.topic_id == topic_id:
                landed.append(record.held_now.spans().get(partition, SpanSet()))
        return min((span.start for spans in landed for span in spans), default=otherwise)

    @property
    def lost(self) -> Mapping[int, SpanSet]:
        """The accepted losses whose offsets no plan has landed since, by partition."""
        return difference_by_partition(self.accepted_losses, self.landed)

    def covered(self, partition: int) -> SpanSet:
        """Return the offsets that no plan needs to read: landed, gaps, or an accepted loss."""
        return self.landed.get(partition, SpanSet()).union(
            self.accepted_losses.get(partition, SpanSet())
        )

    def covered_or_planned(self, partition: int) -> SpanSet:
        """Return the offsets that are covered or in an open plan; a new plan avoids them (I2)."""
        return self.covered(partition).union(
            self.pending.get(partition, SpanSet())  # fence: no-two-plans-over-one-offset
        )

    def replaceable(self, partition: int) -> SpanSet:
        """Return the offsets whose rows a new plan may replace: landed, and in no open plan."""
        return self.landed.get(partition, SpanSet()).difference(
            self.pending.get(partition, SpanSet())
        )

    def committed_offset(self, partition: int) -> int:
        """The end of the contiguous coverage (S3); KeyError for an unknown partition."""
        return self.covered(partition).contiguous_end(self.starts[partition])

    def committed_with(
        self, more: Mapping[int, SpanSet], starts: Mapping[int, int] | None = None
    ) -> Mapping[int, int]:
        """Return the committed offsets of the partitions of `more` after `more` is covered.

        Args:
            more: Offsets, by partition.
            starts: Start offsets of partitions that are not in `self.starts` yet.
        """
        begun = {**self.starts, **(starts or {})}
        return {
            partition: self.covered(partition).union(spans).contiguous_end(begun[partition])
            for partition, spans in more.items()
        }

    def committed_without(self, less: Mapping[int, SpanSet]) -> Mapping[int, int]:
        """Return the committed offsets of the partitions of `less` after `less` is undone."""
        rest = replace(
            self,
            landed={
                p: spans.difference(less.get(p, SpanSet())) for p, spans in self.landed.items()
            },
        )
        return {p: rest.committed_offset(p) for p in less if p in self.starts}

    def positions(self, kind: PlanKind) -> Mapping[int, Position]:
        """Return the furthest end of a landed range of a chain, by partition.

        Its leader epoch is that of the landing. The epoch of planning may be older: the log can be
        truncated and grow again before the read.

        Before its first landing, the live chain is at the start offsets.
        """
        landed = [
            (partition, end)
            for (topic_id, partition, of), end in self.settled.ends.items()
            if (topic_id, of) == (self.topic_id, kind)
        ]
        for record in self.plans.values():
            plan = record.plan
            if (
                record.held_now
                and record.landed_originally
                and (plan.topic_id, plan.kind) == (self.topic_id, kind)
            ):
                landed += [
                    (count.partition, Position(offset=count.end, leader_epoch=count.leader_epoch))
                    for count in record.landed_originally.counts
                ]
        started = {
            partition: Position(offset=offset, leader_epoch=self.start_epochs.get(partition))
            for partition, offset in self.starts.items()
            if kind is PlanKind.LIVE
        }
        return {**started, **furthest_positions(landed)}

    def chain_head(self, kind: PlanKind) -> ChainHead:
        """Return the newest plan of a chain that is not open, and its newest table version.

        Without such a plan in this epoch: 0 and -1.
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
        """Number of the newest landed plan; None without one."""
        landed = [record.plan.sequence for record in self.plans.values() if record.held_now]
        settled = (chain.sequence for chain in self.settled.chain_heads.values())
        return max([*landed, *settled], default=None)

    @property
    def records(self) -> int:
        """Number of records of all landed plans."""
        landings = (record.held_now for record in self.plans.values())
        return self.settled.records + sum(landing.records for landing in landings if landing)

    def open_plans(self) -> list[PlanRecord]:
        """Return the plans that may still land, oldest first."""
        return [record for record in self.plans.values() if record.is_open]

    def open_plan(self, kind: PlanKind) -> PlanRecord | None:
        """Return the open plan of a chain, if any. The protocol allows one."""
        return next((record for record in self.open_plans() if record.plan.kind is kind), None)

    def plan_requested_by(self, origin: PlanOrigin) -> int | None:
        """Return the number of the newest plan that was made for an origin or taken over by it.

        Abandoned and undone plans do not count.
        """
        requested = [
            record.plan.sequence
            for record in self.plans.values()
            if origin in record.requesters and record.cancelled_by is None
        ]
        if origin in self.settled.requesters:
            requested.append(self.settled.requesters[origin])
        return max(requested, default=None)


CheckedLedger = NewType("CheckedLedger", Ledger)
"""A ledger with the same history as the log of its data table; only such a ledger can be continued.

`ingest.ledgers` creates it by a comparison, and `repair.rewind` for ledgers that it corrects.
`dataclasses.replace` would keep the type, so only this module changes ledgers with it.
"""

L = TypeVar("L", bound=Ledger)


def _with_event(ledger: L, event: ControlEvent) -> L:
    """Return the ledger with the pipeline-wide effects of one event."""
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
        case RecreationAccepted():
            # Offsets of other incarnations do not apply to this one.
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
                # The table may be an older copy, in which the undo was lost.
                newest_undo=None,
            )
        case Undone(table_version=int(version)):
            # Concurrent undos may be recorded in another order than they changed the table.
            known = ledger.newest_undo
            is_newest = known is None or version > (known.table_version or 0)
            return replace(ledger, newest_undo=event) if is_newest else ledger
        case (
            BackfillRequested()
            | Planned()
            | Superseded()
            | Adopted()
            | Abandoned()
            | Landed()
            | PublicationDecided()
            | UndoStarted()
            | Undone()
        ):
            return ledger
        case _:
            assert_never(event)


def _update_plan(plans: dict[int, PlanRecord], event: ControlEvent, epoch: NewEpoch | None) -> None:
    """Apply an event of an epoch to the record of its plan. Events of lost plans have no effect."""
    match event:
        case Planned(plan=plan):
            plans[plan.sequence] = PlanRecord(plan=plan, requesters=(plan.origin,))
        case Landed(plan=plan):
            plans[plan.sequence] = replace(
                plans[plan.sequence],
                held_now=event.landing,
                landed_originally=event.landing,
                # The event contains the current counts.
                superseded=(),
                cancelled_by=None,
                landed_in=epoch,
            )
        case (
            Superseded() | Adopted() | PublicationDecided() | Abandoned() | UndoStarted() | Undone()
        ):
            if record := plans.get(event.sequence):
                plans[event.sequence] = _updated(record, event)
        case Started() | BackfillRequested() | RecreationAccepted() | LossAccepted() | NewEpoch():
            pass
        case _:
            assert_never(event)


def _updated(
    record: PlanRecord,
    event: Superseded | Adopted | PublicationDecided | Abandoned | UndoStarted | Undone,
) -> PlanRecord:
    """Return the record of a plan after an event of the plan."""
    match event:
        case Superseded():
            return replace(record, superseded=(*record.superseded, event))
        case Adopted():
            return replace(record, requesters=(*record.requesters, event.origin))
        case PublicationDecided():
            return replace(record, decision=event.after(record.decision))
        case Abandoned() | UndoStarted() | Undone():
            return replace(
                record,
                held_now=None,
                landed_originally=record.landed_originally
                if isinstance(event, UndoStarted)
                else None,
                cancelled_by=event,
            )


def _with_current_counts(record: PlanRecord, plans: Mapping[int, PlanRecord]) -> PlanRecord:
    """Return the record without the ranges that landed plans have replaced."""
    if record.landed_originally is None or record.undoing:
        return record
    return replace(record, held_now=_current_landing(record, plans))


def _current_landing(record: PlanRecord, plans: Mapping[int, PlanRecord]) -> Landing:
    """Return the landing of a plan without replaced ranges; empty for a plan that has not landed.

    The newest landed plan that replaces its rows decides.
    """
    whole = record.landed_originally or Landing(
        sequence=record.plan.sequence, table_version=-1, counts=()
    )
    kept = (event.counts for event in reversed(record.superseded) if _has_replaced(plans, event.by))
    return replace(whole, counts=next(kept, whole.counts))  # fence: replaced-plan-holds-the-rest


def _has_replaced(plans: Mapping[int, PlanRecord], sequence: int) -> bool:
    """Return whether a replacing plan has landed. A settled plan has."""
    by = plans.get(sequence)
    return by is None or by.has_landed  # fence: only-landed-plans-replace

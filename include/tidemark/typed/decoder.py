"""Planning what of a bronze table is decoded: what has landed there, and what has changed since.

The typed table has a pipeline of its own, with plans, a ledger and transactions as any other. Its
log is the bronze table: what it has landed more than the bronze table is undone, what was landed
anew is decoded anew, and what is missing is planned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from tidemark.core import plan_rules as planning
from tidemark.core.accounting import Landing
from tidemark.core.events import ControlEvent, LossAccepted, NewIncarnation, Planned, Started
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import SpanSet, shared, size_of, united, without
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.table_state import newest_table_version
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.landed_log import LandedLog
from tidemark.ingest.planner import PlanOutcome, PlanResult
from tidemark.ingest.protocols import Clock, ControlTable, DataLog
from tidemark.ingest.recorder import Recorder, check_rows, checked_ledger
from tidemark.ingest.replacement import superseded_events
from tidemark.repair.abandon import Abandon
from tidemark.repair.undo import Undo
from tidemark.spec.decode import DecodedFrom, DecodeSpec
from tidemark.spec.model import PipelineSpec
from tidemark.typed.errors import RegistryUnavailable, SchemaConflict
from tidemark.typed.schemas import Fit, GrowingTable, Schemas

log = logging.getLogger(__name__)

_FOLLOWS = "decode"
"""Who does what follows from a change of the bronze table."""
_MOST_REPLAYED = 1_000
"""Offsets of a plan that decodes single ones again: each may be a range of its own, which is a row
of the control table and a condition for every row that is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Offsets of which the typed table is not what the bronze table says it should be.

    Attributes:
        missing: Landed and not decoded, those of open plans included.
        open: In an open plan.
        stale: Decoded, and landed anew since.
        more: Decoded, and undone since.
    """

    missing: int
    open: int
    stale: int
    more: int

    @property
    def offsets(self) -> int:
        """Number of offsets to decode, to decode again, or to take out."""
        return self.missing + self.stale + self.more

    def as_record(self) -> dict[str, int]:
        """The numbers as plain values, for `--json`."""
        return {name: getattr(self, name) for name in ("missing", "open", "stale", "more")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Plans for the typed table of one pipeline. Reads tables, writes control events.

    Attributes:
        spec: The pipeline of the typed table.
        decode: How records are decoded.
        control: The control table.
        bronze: The data table that is decoded.
        table: The typed table, with its quarantine.
        schemas: What records are written with, where they say so.
        now: The clock.
    """

    spec: PipelineSpec
    decode: DecodeSpec
    control: ControlTable
    bronze: DataLog
    table: GrowingTable
    schemas: Schemas
    now: Clock

    @property
    def landed(self) -> LandedLog:
        """What is decoded, as a log."""
        return LandedLog(
            pipeline=self.spec.origin,
            typed=self.spec.name,
            control=self.control,
            data_log=self.bronze,
        )

    def plan(self) -> PlanResult:
        """Return the plan to decode next: the open one, or a new one; none if all is decoded.

        First records an open plan that has landed, abandons an open plan that would be decoded
        differently now, and undoes typed plans with rows that the bronze table no longer has.
        Offsets that have landed again in the bronze table are planned before all others; their plan
        replaces the typed rows.

        Raises:
            SchemaConflict: Offsets remain, and none of them can be decoded.
            RegistryUnavailable, RegistryRefused: The schemas of the next plan are unknown.
            TableBehindLedger, LedgerBehindTable, TableRestored: A data table and the control table
                are not of one history.
            QuarantineRestored: Nor is the quarantine.
            DuplicateRows: A data table has more rows than have landed in it.
            ControlConflict, TransactionConflict: Concurrent processes were first, several times.
        """
        return retry_on_conflict(self._once)

    def waiting(self) -> Waiting:
        """What `plan` would have decoded, taken out, and decoded again. Writes nothing."""
        bronze, ledger = self._ledgers()
        return Waiting(
            missing=sum(map(size_of, _more(bronze, ledger).values())),
            open=sum(record.plan.size for record in ledger.open_plans()),
            stale=sum(map(size_of, self._stale(bronze, ledger).values())),
            more=sum(map(size_of, _more(ledger, bronze).values())),
        )

    def replay(self, topic_id: str, spans: Mapping[int, SpanSet]) -> PlanResult:
        """The next plan that decodes offsets again, in place of what there is of them.

        What has to be decoded before comes first, as from `plan`.

        Args:
            topic_id: Incarnation of the topic.
            spans: Offsets of it that have been decoded, or quarantined, by partition.

        Raises:
            TableBehindLedger, ControlConflict and so on: As for `plan`.
        """
        return retry_on_conflict(lambda: self._again(topic_id, spans))

    def _again(self, topic_id: str, spans: Mapping[int, SpanSet]) -> PlanResult:
        try:
            first = self._once()
        except SchemaConflict as elsewhere:
            # What is asked for may be before it, or in another partition.
            log.warning("not waited for: %s", elsewhere)
        else:
            if first.plan is not None:
                # What is open has to land first; it may be what was asked for.
                return first
        bronze, ledger = self._ledgers()
        wanted = shared(shared(spans, ledger.landed_of(topic_id)), bronze.landed_of(topic_id))
        again = _Wanted(PlanKind.BACKFILL, topic_id, wanted)
        return self._planned(bronze, ledger, [again], _MOST_REPLAYED)

    def _once(self) -> PlanResult:
        bronze, ledger = self._ledgers()
        if bronze.topic_id is None:
            return PlanResult(outcome=PlanOutcome.NOTHING, plan=None)
        if self._follow(bronze, ledger):
            return self._once()
        for opened in ledger.open_plans():
            landing = self.table.find_landing(opened.plan)
            if landing is None and self._is_right(bronze, opened.plan):
                return PlanResult(outcome=PlanOutcome.KEPT, plan=opened.plan)
            self._settle(ledger, opened.plan, landing)
            return self._once()
        if self._undone(bronze, ledger):  # fence: undone-rows-leave-typed-table
            return self._once()
        stale = self._stale(bronze, ledger)
        wanted = [_Wanted(PlanKind.BACKFILL, *each) for each in stale.items()]
        wanted += [_Wanted(PlanKind.LIVE, *each) for each in _more(bronze, ledger).items()]
        return self._planned(bronze, ledger, wanted, self.spec.records_per_chunk)

    def _ledgers(self) -> tuple[Ledger, Ledger]:
        self.table.check_whole(self.spec.name)  # fence: restored-quarantine-is-missed
        check_rows(self.control, self.spec.origin, self.bronze)
        check_rows(self.control, self.spec.name, self.table)
        return (
            checked_ledger(self.control, self.spec.origin, self.bronze),
            checked_ledger(self.control, self.spec.name, self.table),
        )

    # -- what follows from the bronze ledger ------------------------------------------------------

    def _follow(self, bronze: Ledger, ledger: Ledger) -> bool:
        """Record incarnations, partitions and losses of the bronze ledger; whether any is new."""
        cluster_id, topic = bronze.cluster_id or "", bronze.topic or ""
        topic_id, reason = bronze.topic_id or "", f"as of {self.spec.origin}"
        if ledger.topic_id not in (None, topic_id):
            begun = NewIncarnation(
                cluster_id=cluster_id,
                topic=topic,
                topic_id=topic_id,
                offsets=bronze.starts,
                requested_by=_FOLLOWS,
                reason=reason,
            )
            self.control.append(ledger, [begun], self.now())
            return True
        events: list[ControlEvent] = []
        starts = {p: offset for p, offset in bronze.starts.items() if p not in ledger.starts}
        if starts:
            events.append(
                Started(
                    cluster_id=cluster_id,
                    topic=topic,
                    topic_id=topic_id,
                    requested_by=_FOLLOWS,
                    offsets=starts,
                    reason=reason,
                )
            )
        lost = without(bronze.accepted, ledger.accepted)
        if lost:
            known = replace(ledger, starts={**ledger.starts, **starts})
            events.append(
                LossAccepted(
                    topic=topic,
                    topic_id=topic_id,
                    lost=lost,
                    committed=known.committed_with(lost),
                    requested_by=_FOLLOWS,
                    reason=reason,
                )
            )
        if events:
            self.control.append(ledger, events, self.now())
        return bool(events)

    # -- open plans -------------------------------------------------------------------------------

    def _is_right(self, bronze: Ledger, plan: Plan) -> bool:
        """Whether an open plan is still to be decoded, and as the spec says now."""
        source = DecodedFrom.parse(plan.requested_by)
        if (
            source is None
            or source.fingerprint != self.decode.fingerprint  # fence: plan-of-another-decoder
        ):
            return False
        if plan.offsets_outside(bronze.landed_of(plan.topic_id)):
            return False
        try:
            fit = self.schemas.fit(plan.topic_id, plan.spans())
        except RegistryUnavailable:
            if not all(map(self.schemas.are_kept, source.schemas.values())):
                raise
            return True
        if fit.stops or fit.schemas != source.schemas:
            return False
        self._grow(fit)
        return True

    def _grow(self, fit: Fit) -> None:
        """Have the typed table take all that its next plan decodes to."""
        if fit.columns:
            self.table.grow(self.spec.name, fit.columns)

    def _settle(self, ledger: Ledger, plan: Plan, landing: Landing | None) -> None:
        """Record an open plan that has landed; give one up that is not right any more."""
        if landing is not None:
            Recorder(
                control=self.control,
                data_log=self.table,
                watermarks=self.landed,
                log_reader=self.landed,
                now=self.now,
            ).record(ledger, plan, landing)
            return
        Abandon(
            pipeline=self.spec.name,
            watermarks=self.landed,
            control=self.control,
            table=self.table,
            log_reader=self.landed,
            now=self.now,
        ).abandon(
            plan.sequence,
            _FOLLOWS,
            "the spec decodes otherwise now, or what it decodes has left the bronze table",
        )

    # -- what is not as it was when it was decoded ------------------------------------------------

    def _undone(self, bronze: Ledger, ledger: Ledger) -> bool:
        """Take plans out that have what the bronze table has not; whether there were any."""
        more = _more(ledger, bronze)
        if not more and not any(record.undoing for record in ledger.plans.values()):
            return False
        undo = Undo(pipeline=self.spec.name, control=self.control, table=self.table, now=self.now)
        whole = self.control.ledger(self.spec.name)
        for record in whole.plans.values():
            holds = record.landing.spans() if record.landing else {}
            if record.undoing or shared(holds, more.get(record.plan.topic_id, {})):
                reason = f"it has offsets that {self.spec.origin} has not landed any more"
                undo.undo(record.plan.sequence, _FOLLOWS, reason)
        return True

    def _stale(self, bronze: Ledger, ledger: Ledger) -> Mapping[str, Mapping[int, SpanSet]]:
        """Offsets that were decoded before they were landed anew, by incarnation and partition."""
        kinds = {kind for _, kind in bronze.settled.newest}
        kinds |= {record.plan.kind for record in bronze.plans.values()}
        is_undone = any(record.abandoned is not None for record in bronze.plans.values())
        if PlanKind.BACKFILL not in kinds and not is_undone and bronze.epoch == 0:
            # Nothing was ever landed twice.
            return {}
        whole = self.control.ledger(self.spec.origin)
        typed = self.control.ledger(self.spec.name)
        found = {topic_id: stale_offsets(whole, typed, topic_id) for topic_id in topics_of(ledger)}
        # fence: replaced-rows-are-decoded-again
        return {topic_id: spans for topic_id, spans in found.items() if spans}

    # -- the plan ---------------------------------------------------------------------------------

    def _planned(
        self, bronze: Ledger, ledger: Ledger, wanted: Sequence[_Wanted], most: int
    ) -> PlanResult:
        """The first plan that can be made of what is wanted.

        Raises:
            SchemaConflict: There is something left, and nothing of it can be decoded.
        """
        stopped: list[SchemaConflict] = []
        for each in wanted:
            chosen, fit = self._chosen(each, most, stopped)
            if chosen:
                return self._recorded(bronze, ledger, each, chosen, fit)
        if stopped:
            for other in stopped[1:]:
                log.warning("stopped as well: %s", other)
            raise stopped[0]
        return PlanResult(outcome=PlanOutcome.NOTHING, plan=None)

    def _chosen(
        self, wanted: _Wanted, most: int, stopped: list[SchemaConflict]
    ) -> tuple[Mapping[int, SpanSet], Fit]:
        """What of some offsets a plan decodes: what comes before that which cannot be."""
        left = dict(wanted.spans)
        while True:
            shares = planning.share({p: spans.size for p, spans in left.items() if spans}, most)
            chosen = {p: left[p].first(count) for p, count in sorted(shares.items()) if count}
            fit = self.schemas.fit(wanted.topic_id, chosen)
            if not fit.stops:
                return chosen, fit
            stopped += fit.stops.values()
            for partition, stop in fit.stops.items():
                left[partition] = left[partition].before(stop.offset)

    def _recorded(
        self,
        bronze: Ledger,
        ledger: Ledger,
        wanted: _Wanted,
        chosen: Mapping[int, SpanSet],
        fit: Fit,
    ) -> PlanResult:
        kind, topic_id = wanted.kind, wanted.topic_id
        self._grow(fit)
        source = DecodedFrom(
            pipeline=self.spec.origin,
            epoch=bronze.epoch,
            version=self._newest_version(bronze),
            fingerprint=self.decode.fingerprint,
            schemas=fit.schemas,
        )
        plan = Plan(
            pipeline=self.spec.name,
            sequence=ledger.next_sequence,
            kind=kind,
            epoch=ledger.epoch,
            cluster_id=self._cluster_of(bronze, topic_id),
            topic=bronze.topic or "",
            topic_id=topic_id,
            isolation_level=self.spec.isolation_level,
            requested_by=str(source),
            ranges=tuple(
                PlannedRange.bare(partition, span)
                for partition, spans in chosen.items()
                for span in spans
            ),
            replaces=kind is PlanKind.BACKFILL,
        )
        events: list[ControlEvent] = [Planned(plan=plan)]
        if plan.replaces:
            events += superseded_events(plan, self.control.ledger(self.spec.name), self.table)
        self.control.append(ledger, events, self.now())
        log.info("planned pipeline=%s plan=%d offsets=%d", plan.pipeline, plan.sequence, plan.size)
        return PlanResult(outcome=PlanOutcome.NEW, plan=plan)

    def _newest_version(self, bronze: Ledger) -> int:
        """The newest version of the bronze table that a landing is told of with."""
        if bronze.epoch == 0:
            return newest_table_version(bronze)
        # A rewind tells landings of older epochs anew.
        records = self.control.ledger(self.spec.origin).plans.values()
        return max((r.landing.table_version for r in records if r.landing), default=-1)

    def _cluster_of(self, bronze: Ledger, topic_id: str) -> str:
        """The cluster of an incarnation."""
        if topic_id == bronze.topic_id:
            return bronze.cluster_id or ""
        plans = (record.plan for record in self.control.ledger(self.spec.origin).plans.values())
        return next(plan.cluster_id for plan in plans if plan.topic_id == topic_id)


class _Wanted(NamedTuple):
    """Offsets to be decoded of one incarnation, in place of what there is of them or not."""

    kind: PlanKind
    topic_id: str
    spans: Mapping[int, SpanSet]


def topics_of(ledger: Ledger) -> list[str]:
    """Incarnations of which anything has been planned, sorted."""
    found = {topic_id for topic_id, _ in ledger.settled.landed}
    return sorted(found | {record.plan.topic_id for record in ledger.plans.values()})


def _more(ledger: Ledger, other: Ledger) -> Mapping[str, Mapping[int, SpanSet]]:
    """Offsets that have landed in one ledger and not in another, by incarnation and partition."""
    found = {
        topic_id: without(ledger.landed_of(topic_id), other.landed_of(topic_id))
        for topic_id in topics_of(ledger)
    }
    return {topic_id: spans for topic_id, spans in found.items() if spans}


def stale_offsets(bronze: Ledger, typed: Ledger, topic_id: str) -> Mapping[int, SpanSet]:
    """Offsets that were decoded before they were landed anew, by partition.

    By the versions of the bronze table; one that was made anew begins to count anew, in a later
    epoch.

    Args:
        bronze: The bronze pipeline, read whole.
        typed: The pipeline of its typed table, read whole.
        topic_id: The incarnation.
    """
    landings = [
        (record.plan.epoch, record.landing.table_version, record.landing.spans())
        for record in bronze.plans.values()
        if record.landing and record.plan.topic_id == topic_id
    ]
    decoded = [
        (*_seen(record.plan), record.landing.spans())
        for record in typed.plans.values()
        if record.landing and record.plan.topic_id == topic_id
    ]
    by_epoch = _landed_since(
        [(e, spans) for e, _, spans in landings], [(e, spans) for e, _, spans in decoded]
    )
    by_version = _landed_since(
        [(v, spans) for _, v, spans in landings], [(v, spans) for _, v, spans in decoded]
    )
    return united([by_epoch, by_version])


_Dated: TypeAlias = Sequence[tuple[int, Mapping[int, SpanSet]]]
"""Offsets by partition, and when."""


def _landed_since(landings: _Dated, decoded: _Dated) -> Mapping[int, SpanSet]:
    """Of what was decoded, the offsets that were landed later."""
    waiting = sorted(landings, key=lambda landing: landing[0])
    # From the newest on: what has landed since a plan has also landed since all before it.
    since: Mapping[int, SpanSet] = {}
    stale = []
    for seen, spans in sorted(decoded, key=lambda plan: plan[0], reverse=True):
        while waiting and waiting[-1][0] > seen:
            since = united([since, waiting.pop()[1]])
        stale.append(shared(spans, since))
    return united(stale)


def _seen(plan: Plan) -> tuple[int, int]:
    """Epoch and version of the bronze table that a typed plan goes by."""
    source = DecodedFrom.parse(plan.requested_by)
    return (source.epoch, source.version) if source else (-1, -1)

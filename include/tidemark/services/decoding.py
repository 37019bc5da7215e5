"""Planning what of a bronze table is decoded: what has landed there, and what has changed since.

The typed table has a pipeline of its own, with plans, a ledger and transactions as any other. Its
log is the bronze table: what it has landed more than the bronze table is undone, what was landed
anew is decoded anew, and what is missing is planned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidemark.core import planning
from tidemark.core.decoding import DecodedFrom, DecodeSpec
from tidemark.core.events import ControlEvent, LossAccepted, NewIncarnation, Planned, Started
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import SpanSet, size_of, united
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.spec import PipelineSpec
from tidemark.ports import Clock, ControlTable, DataLog, DataTable
from tidemark.services.abandon import Abandon
from tidemark.services.conflicts import after_conflicts
from tidemark.services.landed_log import LandedLog
from tidemark.services.planner import Planning, PlanOutcome
from tidemark.services.recording import Recorder, checked_ledger
from tidemark.services.superseding import superseded_events
from tidemark.services.undo import Undo

log = logging.getLogger(__name__)

_FOLLOWS = "decode"
"""Who does what follows from a change of the bronze table."""
_MOST_REPLAYED = 10_000
"""Offsets of a plan that decodes single ones again: each may be a range, and a row, of its own."""


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
        now: The clock.
    """

    spec: PipelineSpec
    decode: DecodeSpec
    control: ControlTable
    bronze: DataLog
    table: DataTable
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

    def plan(self) -> Planning:
        """The next plan to be decoded, or the one that is open; none if all is decoded.

        First whatever the typed table has more than the bronze table, or decoded before it was
        landed anew, is put right.

        Raises:
            TableBehindLedger, LedgerBehindTable, TableRestored: A data table and the control table
                are not of one history.
            ControlConflict, TransactionConflict: Others were first, several times over.
        """
        return after_conflicts(self._once)

    def waiting(self) -> Waiting:
        """What `plan` would have decoded, taken out, and decoded again. Writes nothing."""
        bronze, ledger = self._ledgers()
        return Waiting(
            missing=sum(spans.size for spans in _more(bronze, ledger).values()),
            open=sum(record.plan.size for record in ledger.open_plans()),
            stale=size_of(self._stale(bronze, ledger)),
            more=sum(spans.size for spans in _more(ledger, bronze).values()),
        )

    def replay(self, spans: Mapping[int, SpanSet]) -> Planning:
        """The next plan that decodes offsets again, in place of what there is of them.

        What has to be decoded before comes first, as from `plan`.

        Args:
            spans: Offsets that have been decoded, or quarantined, by partition.

        Raises:
            TableBehindLedger, ControlConflict and so on: As for `plan`.
        """
        return after_conflicts(lambda: self._again(spans))

    def _again(self, spans: Mapping[int, SpanSet]) -> Planning:
        first = self._once()
        if first.plan is not None:
            # What is open has to land first; it may be what was asked for.
            return first
        bronze, ledger = self._ledgers()
        landed = bronze.landed_of(ledger.topic_id)
        wanted = {
            partition: some.common(ledger.replaceable(partition)).common(
                landed.get(partition, SpanSet())
            )
            for partition, some in spans.items()
        }
        return self._planned(bronze, ledger, PlanKind.BACKFILL, wanted, _MOST_REPLAYED)

    def _once(self) -> Planning:
        bronze, ledger = self._ledgers()
        if bronze.topic_id is None:
            return Planning(outcome=PlanOutcome.NOTHING, plan=None)
        if ledger.topic_id is None:
            self._begin(ledger, self._incarnations(bronze)[0])
            return self._once()
        if ledger.topic_id == bronze.topic_id and self._follow(bronze, ledger):
            return self._once()
        for opened in ledger.open_plans():
            if self._is_to_land(bronze, opened.plan):
                return Planning(outcome=PlanOutcome.KEPT, plan=opened.plan)
            self._settle(ledger, opened)
            return self._once()
        if self._undone(bronze, ledger):
            return self._once()
        stale = self._stale(bronze, ledger)
        if stale:
            return self._planned(bronze, ledger, PlanKind.BACKFILL, stale)
        missing = {
            partition: spans.minus(ledger.taken(partition))
            for partition, spans in bronze.landed_of(ledger.topic_id).items()
        }
        made = self._planned(bronze, ledger, PlanKind.LIVE, missing)
        if made.plan is None and ledger.topic_id != bronze.topic_id:
            # Only now: all of the incarnation before is decoded.
            self._begin(ledger, self._next_incarnation(bronze, ledger))
            return self._once()
        return made

    def _ledgers(self) -> tuple[Ledger, Ledger]:
        return (
            checked_ledger(self.control, self.spec.origin, self.bronze),
            checked_ledger(self.control, self.spec.name, self.table),
        )

    # -- what follows from the bronze ledger ------------------------------------------------------

    def _follow(self, bronze: Ledger, ledger: Ledger) -> bool:
        """Record partitions and losses of the bronze ledger; whether there were new ones."""
        events: list[ControlEvent] = []
        starts = {p: offset for p, offset in bronze.starts.items() if p not in ledger.starts}
        if starts:
            events.append(
                self._started(
                    bronze.cluster_id or "", bronze.topic or "", bronze.topic_id or "", starts
                )
            )
        lost = {
            partition: new
            for partition, spans in bronze.accepted.items()
            if (new := spans.minus(ledger.accepted.get(partition, SpanSet())))
        }
        if lost:
            known = replace(ledger, starts={**ledger.starts, **starts})
            events.append(
                LossAccepted(
                    topic=bronze.topic or "",
                    topic_id=bronze.topic_id or "",
                    lost=lost,
                    committed=known.committed_with(lost),
                    requested_by=_FOLLOWS,
                    reason=f"accepted for {self.spec.origin}",
                )
            )
        if events:
            self.control.append(ledger, events, self.now())
        return bool(events)

    def _begin(self, ledger: Ledger, incarnation: Started) -> None:
        """Go on with an incarnation of the topic: the first, or the next that has landed."""
        if ledger.topic_id is None:
            self.control.append(ledger, [incarnation], self.now())
            return
        event = NewIncarnation(
            cluster_id=incarnation.cluster_id,
            topic=incarnation.topic,
            topic_id=incarnation.topic_id,
            offsets=incarnation.offsets,
            requested_by=_FOLLOWS,
            reason=f"accepted for {self.spec.origin}",
        )
        self.control.append(ledger, [event], self.now())

    def _next_incarnation(self, bronze: Ledger, ledger: Ledger) -> Started:
        order = self._incarnations(bronze)
        places = [n for n, each in enumerate(order) if each.topic_id == ledger.topic_id]
        return order[max(places) + 1] if places else order[-1]

    def _incarnations(self, bronze: Ledger) -> list[Started]:
        """The topic as often as it was made, from the first of which anything has landed on."""
        starts: dict[str, dict[int, int]] = {}
        plans: dict[str, Plan] = {}
        for record in self.control.ledger(self.spec.origin).plans.values():
            plan = record.plan
            if not record.landing or plan.topic_id == bronze.topic_id:
                continue
            plans.setdefault(plan.topic_id, plan)
            here = starts.setdefault(plan.topic_id, {})
            for count in record.landing.counts:
                here[count.partition] = min(count.start, here.get(count.partition, count.start))
        return [
            *(
                self._started(plan.cluster_id, plan.topic, topic_id, starts[topic_id])
                for topic_id, plan in plans.items()
            ),
            self._started(
                bronze.cluster_id or "", bronze.topic or "", bronze.topic_id or "", bronze.starts
            ),
        ]

    @staticmethod
    def _started(cluster_id: str, topic: str, topic_id: str, offsets: Mapping[int, int]) -> Started:
        return Started(
            cluster_id=cluster_id,
            topic=topic,
            topic_id=topic_id,
            requested_by=_FOLLOWS,
            offsets=offsets,
        )

    # -- open plans -------------------------------------------------------------------------------

    def _is_to_land(self, bronze: Ledger, plan: Plan) -> bool:
        """Whether an open plan is still right, and has not landed."""
        source = DecodedFrom.parse(plan.requested_by)
        is_same = source is not None and source.fingerprint == self.decode.fingerprint
        landed = bronze.landed_of(plan.topic_id)
        return is_same and not plan.gaps(landed) and self.table.find(plan) is None

    def _settle(self, ledger: Ledger, opened: PlanRecord) -> None:
        """Record an open plan that has landed; give one up that is not right any more."""
        landing = self.table.find(opened.plan)
        if landing is not None:
            Recorder(
                control=self.control,
                data_log=self.table,
                marks=self.landed,
                log_reader=self.landed,
                now=self.now,
            ).record(ledger, opened.plan, landing)
            return
        Abandon(
            pipeline=self.spec.name,
            marks=self.landed,
            control=self.control,
            table=self.table,
            log_reader=self.landed,
            now=self.now,
        ).give_up(
            opened.plan.sequence,
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
            has_more = any(
                spans.common(more.get((record.plan.topic_id, partition), SpanSet()))
                for partition, spans in holds.items()
            )
            if record.undoing or has_more:
                reason = f"it has offsets that {self.spec.origin} has not landed any more"
                undo.undo(record.plan.sequence, _FOLLOWS, reason)
        return True

    def _stale(self, bronze: Ledger, ledger: Ledger) -> Mapping[int, SpanSet]:
        """Offsets that were decoded before they were landed anew, by partition."""
        kinds = {kind for _, kind in bronze.settled.newest}
        kinds |= {record.plan.kind for record in bronze.plans.values()}
        is_undone = any(record.abandoned is not None for record in bronze.plans.values())
        if PlanKind.BACKFILL not in kinds and not is_undone:
            # Nothing was ever landed twice.
            return {}
        found = stale_offsets(
            self.control.ledger(self.spec.origin), self.control.ledger(self.spec.name)
        )
        return {
            p: again for p, spans in found.items() if (again := spans.common(ledger.replaceable(p)))
        }

    # -- the plan ---------------------------------------------------------------------------------

    def _planned(
        self,
        bronze: Ledger,
        ledger: Ledger,
        kind: PlanKind,
        wanted: Mapping[int, SpanSet],
        most: int | None = None,
    ) -> Planning:
        shares = planning.share(
            {partition: spans.size for partition, spans in wanted.items() if spans},
            most or self.spec.records_per_chunk,
        )
        chosen = {p: wanted[p].first(count) for p, count in sorted(shares.items())}
        if not size_of(chosen):
            return Planning(outcome=PlanOutcome.NOTHING, plan=None)
        marks = self.landed.topic_marks(self.spec.topic, self.spec.isolation_level)
        source = DecodedFrom(
            pipeline=self.spec.origin,
            epoch=bronze.epoch,
            version=max(bronze.newest_of(kind).table_version for kind in PlanKind),
            fingerprint=self.decode.fingerprint,
        )
        ranges = planning.planned_ranges(marks, chosen)
        plan = planning.build_plan(ledger, marks, kind, str(source), ranges)
        events: list[ControlEvent] = [Planned(plan=plan)]
        if plan.replaces:
            events += superseded_events(plan, self.control.ledger(self.spec.name), self.table)
        self.control.append(ledger, events, self.now())
        log.info("planned pipeline=%s plan=%d offsets=%d", plan.pipeline, plan.sequence, plan.size)
        return Planning(outcome=PlanOutcome.NEW, plan=plan)


def _more(ledger: Ledger, bronze: Ledger) -> Mapping[tuple[str, int], SpanSet]:
    """Offsets that have landed in one ledger and not in another, by incarnation and partition."""
    topics = {topic_id for topic_id, _ in ledger.settled.landed}
    topics |= {record.plan.topic_id for record in ledger.plans.values()}
    found = {}
    for topic_id in topics:
        landed = bronze.landed_of(topic_id)
        for partition, spans in ledger.landed_of(topic_id).items():
            if left := spans.minus(landed.get(partition, SpanSet())):
                found[topic_id, partition] = left
    return found


def stale_offsets(bronze: Ledger, typed: Ledger) -> Mapping[int, SpanSet]:
    """Offsets that were decoded before they were landed anew, by partition.

    Args:
        bronze: The bronze pipeline, read whole.
        typed: The pipeline of its typed table, read whole; only its incarnation counts.
    """
    landings = sorted(
        (
            ((record.plan.epoch, record.landing.table_version), record.landing.spans())
            for record in bronze.plans.values()
            if record.landing and record.plan.topic_id == typed.topic_id
        ),
        key=lambda landing: landing[0],
    )
    decoded = sorted(
        (
            (_seen(record), record.landing.spans())
            for record in typed.plans.values()
            if record.landing and record.plan.topic_id == typed.topic_id
        ),
        key=lambda plan: plan[0],
        reverse=True,
    )
    # From the newest on: what has landed since a plan has also landed since all before it.
    since: Mapping[int, SpanSet] = {}
    stale: list[Mapping[int, SpanSet]] = []
    for seen, spans in decoded:
        while landings and landings[-1][0] > seen:
            since = united([since, landings.pop()[1]])
        stale.append({p: some.common(since.get(p, SpanSet())) for p, some in spans.items()})
    return {p: spans for p, spans in united(stale).items() if spans}


def _seen(record: PlanRecord) -> tuple[int, int]:
    """Epoch and version of the bronze table that a typed plan goes by."""
    source = DecodedFrom.parse(record.plan.requested_by)
    return (source.epoch, source.version) if source else (-1, -1)

"""Making a plan: settle what is open, look at the log, record what is to be read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tidemark.core import plan_rules as planning
from tidemark.core.accounting import Landing
from tidemark.core.errors import TidemarkError
from tidemark.core.events import Adopted, ControlEvent, Planned, Started
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import SpanSet
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.watermarks import TopicWatermarks
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.errors import BackfillOpen, NoStartOffset, NotLive
from tidemark.ingest.limits import run_limit
from tidemark.ingest.log_comparison import LogComparison
from tidemark.ingest.protocols import BronzeLog, Clock, ControlTable, TopicLogReader, TopicReader
from tidemark.ingest.recorder import Recorder, checked_ledger, recorded_plan
from tidemark.ingest.replacement import superseded_events
from tidemark.spec.model import PipelineSpec, StartPolicy

log = logging.getLogger(__name__)


class PlanOutcome(StrEnum):
    """How a request for a plan ended."""

    NEW = "new"
    """A plan was made and recorded."""
    KEPT = "kept"
    """The requester has a plan already, landed or not."""
    ADOPTED = "adopted"
    """A plan that another run left open was taken over."""
    NOTHING = "nothing to do"
    """Everything asked for is landed, or in a plan that is open; no plan."""
    LANDED = "landed already"
    """A dry run of a plan that has landed: nothing would be read."""
    DRAFT = "draft"
    """A dry run: this plan would be recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The answer to a request for a plan.

    Attributes:
        outcome: How it ended.
        plan: None exactly if there is nothing to do.
    """

    outcome: PlanOutcome
    plan: Plan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedOffsets:
    """Offsets to be landed.

    Attributes:
        spans: The offsets, by partition.
        topic_id: Incarnation of the topic that they belong to; that of now if None.
        readable_only: Leave out what Kafka has deleted, instead of refusing it.
        replaces: Land again what has landed, in place of the rows that are there.
    """

    spans: Mapping[int, SpanSet]
    topic_id: str | None = None
    readable_only: bool = False
    replaces: bool = False

    def is_taken(self, ledger: Ledger) -> bool:
        """Whether all of it has landed or is in an open plan."""
        return not any(spans.minus(ledger.taken(p)) for p, spans in self.spans.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerState:
    """What the control table will contain when the next plan of a chain is made.

    Attributes:
        stored: What it contains now.
        opened: The plan of the chain that may still land; None if there is none.
        unrecorded: A plan of the chain that has landed and is not recorded, and its landing.
    """

    stored: Ledger
    opened: Plan | None = None
    unrecorded: tuple[Plan, Landing] | None = None

    @property
    def ledger(self) -> Ledger:
        """The summary with the unrecorded landing."""
        return self.after(self.stored)

    def after(self, ledger: Ledger) -> Ledger:
        """A ledger of the same pipeline with the unrecorded landing."""
        return ledger.as_landed(*self.unrecorded) if self.unrecorded else ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Makes plans for one pipeline. Reads Kafka and the data table's log, writes control events."""

    spec: PipelineSpec
    watermarks: TopicReader
    control: ControlTable
    data_log: BronzeLog
    log_reader: TopicLogReader
    now: Clock

    def plan(self, requested_by: str) -> PlanResult:
        """Plan the unread part of the log, or return the plan this requester has.

        Raises:
            LostRange, EndBehindCommitted, TopicRecreated, TopicChanged, ClusterChanged,
                PartitionsShrunk: The log no longer fits what was committed.
            LogTruncated: What was committed is not what the log has there now.
            TableBehindLedger, LedgerBehindTable, TableRestored: Nor does the data table.
            NoStartOffset: Policy `none` and no committed offset.
            NotLive: A copy, which has backfills alone.
            ControlConflict: Other writers were first, several times over.
        """
        self._refuse_copy()
        return retry_on_conflict(lambda: self._once(PlanKind.LIVE, requested_by, None))

    def _refuse_copy(self) -> None:
        if not self.spec.is_live:
            raise NotLive(pipeline=self.spec.name, origin=self.spec.origin)

    def backfill(self, wanted: RequestedOffsets, requested_by: str) -> PlanResult:
        """Plan the part of some offsets that is neither landed nor planned, or replace all of it.

        Args:
            wanted: The offsets.
            requested_by: Who asks; asking again with the same value returns the same plan, unless
                that has landed and left something of the offsets.

        Raises:
            InvalidRange, UnknownPartition: The offsets are not inside the readable log.
            OtherIncarnation: They belong to a topic that was made again since.
            BackfillOpen: Another backfill of this pipeline has not landed.
            RowsChanged: A part of a range cannot be replaced; the whole of it can.
            LogTruncated, TopicRecreated and so on: As for `plan`.
        """
        return retry_on_conflict(lambda: self._once(PlanKind.BACKFILL, requested_by, wanted))

    def preview(self) -> PlanResult:
        """What `plan` would answer now. Writes nothing."""
        self._refuse_copy()
        foreseen = self.foreseen(PlanKind.LIVE)
        if foreseen.opened:
            return PlanResult(outcome=PlanOutcome.ADOPTED, plan=foreseen.opened)
        events = self._draft(foreseen.ledger, PlanKind.LIVE, "preview", None)
        plan = _plan_in(events)
        return PlanResult(outcome=PlanOutcome.DRAFT if plan else PlanOutcome.NOTHING, plan=plan)

    def foreseen(self, kind: PlanKind) -> PlannerState:
        """The state that a planner of a chain will decide from.

        A plan that has landed and is not recorded will be recorded before that.
        """
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        opened = ledger.open_plan(kind)
        landing = self.data_log.find_landing(opened.plan) if opened else None
        if opened is None or landing is None:
            return PlannerState(stored=ledger, opened=opened.plan if opened else None)
        accounted, _ = self._recorder.account_for(opened.plan, landing)
        return PlannerState(stored=ledger, unrecorded=(opened.plan, accounted))

    def _once(
        self, kind: PlanKind, requested_by: str, wanted: RequestedOffsets | None
    ) -> PlanResult:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        mine = ledger.plan_of(requested_by)  # fence: plan-of-a-run-is-kept
        if mine is not None:
            kept = recorded_plan(self.control, self.spec.name, mine)
            # What a backfill's plan has missed, nobody else would ever read.
            if wanted is None or kept.is_open or wanted.is_taken(ledger):
                return PlanResult(outcome=PlanOutcome.KEPT, plan=kept.plan)
            # What it landed is not replaced once more.
            wanted = replace(wanted, replaces=False)
        opened = ledger.open_plan(kind)
        if opened:
            landing = self.data_log.find_landing(opened.plan)  # fence: look-before-taking-over
            if landing is None:
                return self._take_over(ledger, opened.plan, requested_by)
            self._recorder.record(ledger, opened.plan, landing)
            # Others may have planned meanwhile: begin anew rather than beside them.
            return self._once(kind, requested_by, wanted)
        events = self._draft(ledger, kind, requested_by, wanted)
        if events:
            self.control.append(ledger, events, self.now())
        plan = _plan_in(events)
        if plan is None:
            log.info("nothing to do pipeline=%s topic=%s", self.spec.name, self.spec.topic)
            return PlanResult(outcome=PlanOutcome.NOTHING, plan=None)
        log.info(
            "planned pipeline=%s plan=%d kind=%s offsets=%d ranges=%d",
            plan.pipeline,
            plan.sequence,
            plan.kind,
            plan.size,
            len(plan.ranges),
        )
        return PlanResult(outcome=PlanOutcome.NEW, plan=plan)

    @property
    def comparison(self) -> LogComparison:
        """Compares the landed records with the topic."""
        return LogComparison(
            watermarks=self.watermarks,
            control=self.control,
            landed=self.data_log,
            log_reader=self.log_reader,
        )

    @property
    def _recorder(self) -> Recorder:
        return Recorder(
            control=self.control,
            data_log=self.data_log,
            watermarks=self.watermarks,
            log_reader=self.log_reader,
            now=self.now,
        )

    def _take_over(self, ledger: Ledger, plan: Plan, requested_by: str) -> PlanResult:
        refuse_open_backfill(plan)
        adopted = Adopted(sequence=plan.sequence, requested_by=requested_by)
        self.control.append(ledger, [adopted], self.now())
        log.info("took over pipeline=%s plan=%d", plan.pipeline, plan.sequence)
        return PlanResult(outcome=PlanOutcome.ADOPTED, plan=plan)

    def _draft(
        self,
        ledger: Ledger,
        kind: PlanKind,
        requested_by: str,
        wanted: RequestedOffsets | None,
    ) -> list[ControlEvent]:
        watermarks = self.watermarks.topic_watermarks(self.spec.topic, self.spec.isolation_level)
        planning.check_identity(ledger, watermarks)
        if wanted and wanted.topic_id:
            planning.check_topic(self.spec.name, wanted.topic_id, watermarks)
        starts = self.starts(ledger, watermarks)
        self.comparison.check_ends(
            ledger, watermarks, wanted.spans if wanted else watermarks.partitions
        )
        ranges = (
            planning.backfill_ranges(
                ledger,
                watermarks,
                wanted.spans,
                readable_only=wanted.readable_only,
                replaces=wanted.replaces,
            )
            if wanted
            else planning.live_ranges(
                ledger, starts, watermarks, self._limit(), lambda: self._expiring(watermarks)
            )
        )
        self.comparison.check_leaders(ledger, watermarks, ranges)
        events: list[ControlEvent] = []
        if starts:
            events.append(Started.at(watermarks, starts, requested_by))
        if ranges:
            plan = planning.build_plan(ledger, watermarks, kind, requested_by, ranges)
            events.append(Planned(plan=plan))
            if plan.replaces:
                whole = self.control.ledger(self.spec.name)
                events += superseded_events(plan, whole, self.data_log)
        return events

    def _limit(self) -> int | None:
        """Most offsets of a live plan."""
        return run_limit(self.spec, self.data_log, lambda: self.control.pace(self.spec.name))

    def _expiring(self, watermarks: TopicWatermarks) -> Mapping[int, int]:
        """Where the offsets end that Kafka will delete within the runway that is alarming."""
        runway = self.spec.alarms.runway
        if runway is None:
            return {}
        try:
            retention = self.watermarks.retention_time(watermarks.topic)
            if retention is None:
                return {}
            moment = self.now() - retention + runway
            return self.watermarks.offsets_at(
                watermarks.topic, sorted(watermarks.partitions), moment
            )
        except TidemarkError as error:
            # Only the order follows from it.
            log.warning("nothing is read first: %s: %s", type(error).__name__, error)
            return {}

    def starts(self, ledger: Ledger, watermarks: TopicWatermarks) -> Mapping[int, int]:
        """Where to begin in partitions that the pipeline has no position in.

        Raises:
            NoStartOffset: Policy `none`, and the pipeline has not begun.
        """
        if ledger.starts:
            return planning.new_partitions(ledger, watermarks)
        match self.spec.start:
            case StartPolicy.EARLIEST:
                return {p: here.low for p, here in watermarks.partitions.items()}
            case StartPolicy.LATEST:
                return {p: here.end for p, here in watermarks.partitions.items()}
            case StartPolicy.TIMESTAMP if self.spec.start_at:
                found = self.watermarks.offsets_at(
                    self.spec.topic, sorted(watermarks.partitions), self.spec.start_at
                )
                return {p: min(found[p], here.end) for p, here in watermarks.partitions.items()}
            case _:
                raise NoStartOffset(
                    pipeline=self.spec.name,
                    topic=watermarks.topic,
                    partitions=tuple(sorted(watermarks.partitions)),
                )


def refuse_open_backfill(opened: Plan) -> None:
    """A live plan is taken over by whoever comes next; a backfill belongs to who asked for it."""
    if opened.kind is PlanKind.BACKFILL:
        raise BackfillOpen(
            pipeline=opened.pipeline, sequence=opened.sequence, requested_by=opened.requested_by
        )


def _plan_in(events: list[ControlEvent]) -> Plan | None:
    return next((event.plan for event in events if isinstance(event, Planned)), None)

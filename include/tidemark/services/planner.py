"""Making a plan: settle what is open, look at the log, record what is to be read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidemark.core import planning
from tidemark.core.events import Adopted, ControlEvent, Planned, Started
from tidemark.core.ledger import Ledger
from tidemark.core.marks import TopicMarks
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.spec import PipelineSpec, StartPolicy
from tidemark.errors import NoStartOffset, PlanOpen
from tidemark.ports import Clock, ControlTable, DataLog, LogReader, MarkReader
from tidemark.services.conflicts import after_conflicts
from tidemark.services.positions import check_positions
from tidemark.services.recording import Recorder, checked_ledger, recorded_plan

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
    DRAFT = "draft"
    """A dry run: this plan would be recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """The answer to a request for a plan.

    Attributes:
        outcome: How it ended.
        plan: None exactly if there is nothing to do.
    """

    outcome: PlanOutcome
    plan: Plan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRequest:
    """Offsets `[start, end)` of one partition that somebody wants landed."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Makes plans for one pipeline. Reads Kafka and the data table's log, writes control events."""

    spec: PipelineSpec
    marks: MarkReader
    control: ControlTable
    data_log: DataLog
    log_reader: LogReader
    now: Clock

    def plan(self, requested_by: str) -> Planning:
        """Plan the unread part of the log, or return the plan this requester has.

        Raises:
            LostRange, EndBehindCommitted, TopicRecreated, TopicChanged, ClusterChanged,
                PartitionsShrunk: The log no longer fits what was committed.
            LogTruncated: What was committed is not what the log has there now.
            TableBehindLedger, LedgerBehindTable, TableRestored: Nor does the data table.
            NoStartOffset: Policy `none` and no committed offset.
            ControlConflict: Other writers were first, several times over.
        """
        return after_conflicts(lambda: self._once(PlanKind.LIVE, requested_by, None))

    def backfill(self, request: BackfillRequest, requested_by: str) -> Planning:
        """Plan the part of a range that is neither landed nor planned.

        Raises:
            InvalidRange: The range is not inside the readable log.
            PlanOpen: Another backfill of this pipeline has not landed.
        """
        return after_conflicts(lambda: self._once(PlanKind.BACKFILL, requested_by, request))

    def preview(self, request: BackfillRequest | None = None) -> Planning:
        """What `plan` or `backfill` would answer now. Writes nothing."""
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        kind = PlanKind.LIVE if request is None else PlanKind.BACKFILL
        opened = ledger.open_plan(kind)
        if opened:
            _refuse_second_backfill(opened.plan)
            return Planning(outcome=PlanOutcome.ADOPTED, plan=opened.plan)
        events = self._draft(ledger, kind, "preview", request)
        plan = _plan_in(events)
        return Planning(outcome=PlanOutcome.DRAFT if plan else PlanOutcome.NOTHING, plan=plan)

    def _once(self, kind: PlanKind, requested_by: str, request: BackfillRequest | None) -> Planning:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        mine = ledger.plan_of(requested_by)
        if mine is not None:
            kept = recorded_plan(self.control, self.spec.name, mine)
            return Planning(outcome=PlanOutcome.KEPT, plan=kept.plan)
        opened = ledger.open_plan(kind)
        if opened:
            landing = self.data_log.find(opened.plan)
            if landing is None:
                return self._take_over(ledger, opened.plan, requested_by)
            self._recorder.record(ledger, opened.plan, landing)
            # Others may have planned meanwhile: begin anew rather than beside them.
            return self._once(kind, requested_by, request)
        events = self._draft(ledger, kind, requested_by, request)
        if events:
            self.control.append(ledger, events, self.now())
        plan = _plan_in(events)
        if plan is None:
            log.info("nothing to do pipeline=%s topic=%s", self.spec.name, self.spec.topic)
            return Planning(outcome=PlanOutcome.NOTHING, plan=None)
        log.info(
            "planned pipeline=%s plan=%d kind=%s offsets=%d ranges=%d",
            plan.pipeline,
            plan.sequence,
            plan.kind,
            plan.size,
            len(plan.ranges),
        )
        return Planning(outcome=PlanOutcome.NEW, plan=plan)

    @property
    def _recorder(self) -> Recorder:
        return Recorder(
            control=self.control,
            data_log=self.data_log,
            marks=self.marks,
            log_reader=self.log_reader,
            now=self.now,
        )

    def _take_over(self, ledger: Ledger, plan: Plan, requested_by: str) -> Planning:
        _refuse_second_backfill(plan)
        adopted = Adopted(sequence=plan.sequence, requested_by=requested_by)
        self.control.append(ledger, [adopted], self.now())
        log.info("took over pipeline=%s plan=%d", plan.pipeline, plan.sequence)
        return Planning(outcome=PlanOutcome.ADOPTED, plan=plan)

    def _draft(
        self,
        ledger: Ledger,
        kind: PlanKind,
        requested_by: str,
        request: BackfillRequest | None,
    ) -> list[ControlEvent]:
        marks = self.marks.topic_marks(self.spec.topic, self.spec.isolation_level)
        planning.check_identity(ledger, marks)
        starts = self._starts(ledger, marks)
        ranges = self._ranges(ledger, starts, marks, request)
        check_positions(ledger, marks, ranges, self.marks, self.log_reader)
        events: list[ControlEvent] = []
        if starts:
            events.append(Started.at(marks, starts, requested_by))
        if ranges:
            plan = planning.build_plan(ledger, marks, kind, requested_by, ranges)
            events.append(Planned(plan=plan))
        return events

    def _ranges(
        self,
        ledger: Ledger,
        starts: Mapping[int, int],
        marks: TopicMarks,
        request: BackfillRequest | None,
    ) -> tuple[PlannedRange, ...]:
        if request is None:
            return planning.live_ranges(ledger, starts, marks, self.spec.records_per_run)
        return planning.backfill_ranges(
            ledger, marks, request.partition, request.start, request.end
        )

    def _starts(self, ledger: Ledger, marks: TopicMarks) -> Mapping[int, int]:
        if ledger.starts:
            return planning.new_partitions(ledger, marks)
        match self.spec.start:
            case StartPolicy.EARLIEST:
                return {p: here.low for p, here in marks.partitions.items()}
            case StartPolicy.LATEST:
                return {p: here.end for p, here in marks.partitions.items()}
            case StartPolicy.TIMESTAMP if self.spec.start_at:
                found = self.marks.offsets_at(
                    self.spec.topic, sorted(marks.partitions), self.spec.start_at
                )
                return {p: min(found[p], here.end) for p, here in marks.partitions.items()}
            case _:
                raise NoStartOffset(
                    pipeline=self.spec.name,
                    topic=marks.topic,
                    partitions=tuple(sorted(marks.partitions)),
                )


def _refuse_second_backfill(opened: Plan) -> None:
    """A live plan is taken over by whoever comes next; a backfill belongs to who asked for it."""
    if opened.kind is PlanKind.BACKFILL:
        raise PlanOpen(
            pipeline=opened.pipeline, sequence=opened.sequence, requested_by=opened.requested_by
        )


def _plan_in(events: list[ControlEvent]) -> Plan | None:
    return next((event.plan for event in events if isinstance(event, Planned)), None)

"""Planning: settle the open plan, read the watermarks, record the next plan."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import StrEnum

from tidemark.bronze.ingest.draft import Draft, Drafter, RequestedOffsets
from tidemark.bronze.ingest.errors import PlanStillOpen
from tidemark.bronze.ingest.ledgers import (
    errors_of_current_ledger,
    read_checked_ledger,
    recorded_plan,
)
from tidemark.bronze.ingest.limits import run_limit
from tidemark.bronze.ingest.log_comparison import LogComparison
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.recorder import Recorder
from tidemark.bronze.ingest.replacement import superseded_events
from tidemark.core.accounting import Landing
from tidemark.core.events import Adopted, ControlEvent, Planned, Started
from tidemark.core.ledger import CheckedLedger, Ledger
from tidemark.core.origins import ChunkOrigin, PlanOrigin, RunOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


class PlanOutcome(StrEnum):
    """Outcome of a request for a plan."""

    NEW = "new"
    """A new plan was recorded."""
    KEPT = "kept"
    """The requester already has this plan, landed or open."""
    ADOPTED = "adopted"
    """The requester took over an open plan of another run."""
    NOTHING = "nothing to do"
    """All requested offsets have landed or are in an open plan; there is no plan."""
    LANDED = "landed already"
    """A dry run: the plan has landed, so nothing would be read."""
    DRAFT = "draft"
    """A dry run: this plan would be recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """Result of a request for a plan.

    Attributes:
        outcome: What was done.
        plan: The plan; None if the outcome is `NOTHING`.
    """

    outcome: PlanOutcome
    plan: Plan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerState:
    """The state from which the next plan of a chain will be made.

    Attributes:
        recorded: Summary of the control table.
        open_plan: The plan of the chain that may still land; None if there is none.
        unrecorded: A plan of the chain that has landed and is not recorded, and its landing.
    """

    recorded: Ledger
    open_plan: Plan | None = None
    unrecorded: tuple[Plan, Landing] | None = None

    @property
    def ledger(self) -> Ledger:
        """The summary with the unrecorded landing."""
        return self.with_landing(self.recorded)

    def with_landing(self, ledger: Ledger) -> Ledger:
        """Return a ledger of the same pipeline with the unrecorded landing."""
        return ledger.with_landing(*self.unrecorded) if self.unrecorded else ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans offsets of one pipeline. Reads Kafka and the data table's log, appends events.

    Attributes:
        spec: The pipeline.
        ports: The ports of its table.
    """

    spec: PipelineSpec
    ports: Ports

    def plan(self, requested_by: str) -> PlanResult:
        """Plan the unread part of the log, or return the run's existing plan.

        Args:
            requested_by: The run: `airflow:<dag>:<run>` or `cli:<user>:<id>`.

        Raises:
            InvalidReference: The name has the form of a backfill's chunk or of a decoder.
            LostRange, EndBehindCommitted, TopicRecreated, TopicChanged: The log does not fit the
                committed offsets.
            LogTruncated: Kafka's records differ from the landed ones.
            HistoriesDiverge: The data table and the control table have different histories.
            NoStartOffset: The spec has `start: none`, and the pipeline has no start offsets.
            ControlConflict: Concurrent processes were first, several times.
        """
        return retry_on_conflict(
            lambda: self._attempt(PlanKind.LIVE, RunOrigin(requested_by), None)
        )

    def backfill(self, wanted: RequestedOffsets, origin: RunOrigin | ChunkOrigin) -> PlanResult:
        """Plan the requested offsets that are neither landed nor planned, or replace all of them.

        Args:
            wanted: The offsets.
            origin: The chunk or the run that requests the plan. A repeated request gets the same
                plan, unless the plan has landed without some of the offsets.

        Raises:
            InvalidSelection: The offsets are not inside the readable log, or the offsets belong to
                a topic that was recreated since.
            PlanStillOpen: Another backfill plan of this pipeline is open.
            RowsChanged: A range can be replaced only as a whole.
            LogTruncated, TopicRecreated and so on: See `plan`.
        """
        return retry_on_conflict(lambda: self._attempt(PlanKind.BACKFILL, origin, wanted))

    def preview(self) -> PlanResult:
        """Return what `plan` would return now. Writes nothing."""
        return retry_on_conflict(self._preview)

    def _preview(self) -> PlanResult:
        state = self.read_state(PlanKind.LIVE)
        if state.open_plan:
            return PlanResult(outcome=PlanOutcome.ADOPTED, plan=state.open_plan)
        plan = self._draft(state.ledger, None).plan(RunOrigin("preview"))
        return PlanResult(outcome=PlanOutcome.DRAFT if plan else PlanOutcome.NOTHING, plan=plan)

    def read_state(self, kind: PlanKind) -> PlannerState:
        """Return the state from which the next plan of a chain will be made.

        A planner first records an open plan that has landed, so the state includes its landing.
        """
        ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
        opened = ledger.open_plan(kind)
        landing = self.ports.table.find_landing(opened.plan) if opened else None
        if opened is None or landing is None:
            return PlannerState(recorded=ledger, open_plan=opened.plan if opened else None)
        accounted, _ = Recorder(ports=self.ports).account_for(opened.plan, landing)
        return PlannerState(recorded=ledger, unrecorded=(opened.plan, accounted))

    def _attempt(
        self, kind: PlanKind, origin: PlanOrigin, wanted: RequestedOffsets | None
    ) -> PlanResult:
        ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
        mine = ledger.plan_requested_by(origin)  # fence: plan-of-a-run-is-kept
        if mine is not None:
            kept = recorded_plan(self.ports.control, self.spec.name, mine)
            # A backfill by dates may have taken over the live plan of a failed run.
            is_open = kept.is_open and kept.plan.kind is kind
            # No other plan would read the offsets that the plan of a backfill missed.
            if wanted is None or is_open or wanted.is_planned(ledger):
                return PlanResult(outcome=PlanOutcome.KEPT, plan=kept.plan)
            # Its landed offsets must not be replaced a second time.
            wanted = replace(wanted, replaces=False)
        opened = ledger.open_plan(kind)
        if opened:
            landing = self.ports.table.find_landing(opened.plan)  # fence: look-before-taking-over
            if landing is None:
                return self._take_over(ledger, opened.plan, origin)
            Recorder(ports=self.ports).record(ledger, opened.plan, landing)
            # A concurrent process may have planned since: start again from the new state.
            return self._attempt(kind, origin, wanted)
        draft = self._draft(ledger, wanted)
        plan = draft.plan(origin)
        events = self._events(draft, plan, origin)
        if events:
            self.ports.control.append(ledger, events, self.ports.now())
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
        """The comparison of landed records with the topic."""
        return LogComparison(ports=self.ports)

    @property
    def drafter(self) -> Drafter:
        """Finds the offsets to read next."""
        return Drafter(spec=self.spec, ports=self.ports)

    def _take_over(self, ledger: CheckedLedger, plan: Plan, origin: PlanOrigin) -> PlanResult:
        refuse_open_backfill(plan)
        adopted = Adopted(sequence=plan.sequence, origin=origin)
        self.ports.control.append(ledger, [adopted], self.ports.now())
        log.info("took over pipeline=%s plan=%d", plan.pipeline, plan.sequence)
        return PlanResult(outcome=PlanOutcome.ADOPTED, plan=plan)

    def _draft(self, ledger: Ledger, wanted: RequestedOffsets | None) -> Draft:
        # The watermarks are read after the ledger. `check_current` or the append refuses a draft
        # from an older ledger, but nothing would detect older watermarks.
        watermarks = self.ports.watermarks_of(self.spec)
        partitions = wanted.spans if wanted else watermarks.partitions
        with errors_of_current_ledger(self.ports.control, ledger):
            topic = self.comparison.compare(ledger, watermarks, partitions)
            if wanted:
                return self.drafter.backfill(topic, wanted)
            limit = run_limit(
                self.spec, self.ports.table, lambda: self.ports.control.throughput(self.spec.name)
            )
            return self.drafter.live(topic, limit)

    def _events(self, draft: Draft, plan: Plan | None, origin: PlanOrigin) -> list[ControlEvent]:
        """Return the events that record a draft."""
        events: list[ControlEvent] = []
        if draft.starts:
            events.append(Started.at(draft.topic.watermarks, draft.starts, str(origin)))
        if plan:
            events.append(Planned(plan=plan))
            if plan.replaces:
                whole = self.ports.control.ledger(self.spec.name)
                events += superseded_events(plan, whole, self.ports.table)
        return events


def refuse_open_backfill(opened: Plan) -> None:
    """Raise for an open backfill plan: unlike a live plan, only its requester continues it.

    Raises:
        PlanStillOpen
    """
    if opened.kind is PlanKind.BACKFILL:
        raise PlanStillOpen.of_backfill(opened.pipeline, opened.sequence, opened.requested_by)

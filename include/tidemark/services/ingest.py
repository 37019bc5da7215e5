"""Executing a plan: land, confirm, record, each of them only if it is not done already."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.core import planning
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.plan import Landing, Plan
from tidemark.core.spec import PipelineSpec
from tidemark.errors import (
    ControlConflict,
    NotLanded,
    PlanAbandoned,
    TransientError,
    UnknownPlan,
)
from tidemark.ports import Clock, ControlTable, DataTable, MarkReader, Sink
from tidemark.services.recording import check_ledger, record_landing

log = logging.getLogger(__name__)

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """What executing a plan came to.

    Attributes:
        plan: The plan.
        landing: Its commit and counts.
        wrote: False if the plan was found landed and nothing was read.
    """

    plan: Plan
    landing: Landing
    wrote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """Executes recorded plans of one pipeline. Any number of executions has the effect of one."""

    spec: PipelineSpec
    marks: MarkReader
    control: ControlTable
    table: DataTable
    sink: Sink
    now: Clock

    def execute(self, sequence: int) -> Ingestion:
        """Land one plan, or find that it has landed.

        Raises:
            UnknownPlan: No such plan.
            PlanAbandoned: It was given up.
            ForeignTable: The target is not a bronze table of this pipeline.
            TableBehindLedger, LedgerBehindTable, TableRestored: The data table and the control
                table are not of one history.
            LostRange, EndBehindCommitted, TopicRecreated, ClusterChanged, PartitionsShrunk: Kafka
                can no longer give what was planned; nothing was written.
            NotLanded: The engine reported success and the table's log disagrees.
            EngineFailed: The engine gave up and the table's log has no trace of the plan.
        """
        ledger = self.control.ledger(self.spec.name)
        record = plan_record(ledger, sequence)
        plan = record.plan
        if record.abandoned is not None:
            raise PlanAbandoned(pipeline=plan.pipeline, sequence=sequence, reason=record.abandoned)
        if record.landing:
            log.info("landed already pipeline=%s plan=%d", plan.pipeline, sequence)
            return Ingestion(plan=plan, landing=record.landing, wrote=False)
        check_ledger(ledger, self.table)
        landing = self.table.find(plan)
        wrote = landing is None
        if landing is None:
            landing = self._land(plan)
        self._record(plan, landing)
        return Ingestion(plan=plan, landing=landing, wrote=wrote)

    def _land(self, plan: Plan) -> Landing:
        marks = self.marks.topic_marks(plan.topic, plan.isolation_level)
        planning.check_readable(plan, marks)
        self.table.prepare(plan.pipeline)
        try:
            self.sink.land(plan)
        except TransientError:
            # The commit may have happened before the failure, or by another driver of this plan.
            landing = self.table.find(plan)
            if landing is None:
                raise
            return landing
        landing = self.table.find(plan)
        if landing is None:
            raise NotLanded(
                pipeline=plan.pipeline,
                sequence=plan.sequence,
                seen="no such commit: a transaction with a stale version is skipped with success",
            )
        return landing

    def _record(self, plan: Plan, landing: Landing) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            ledger = self.control.ledger(plan.pipeline)
            if ledger.plans[plan.sequence].landing:
                return
            marks = self.marks.topic_marks(plan.topic, plan.isolation_level)
            try:
                record_landing(self.control, ledger, plan, landing, marks, self.now())
            except ControlConflict:
                if attempt == _ATTEMPTS:
                    raise
            else:
                return


def plan_record(ledger: Ledger, sequence: int) -> PlanRecord:
    """A recorded plan.

    Raises:
        UnknownPlan: The control table has no such plan.
    """
    if sequence not in ledger.plans:
        raise UnknownPlan(
            pipeline=ledger.pipeline, sequence=sequence, latest=max(ledger.plans, default=None)
        )
    return ledger.plans[sequence]

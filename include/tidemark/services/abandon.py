"""Giving a plan up that cannot land, so that its offsets can be planned again."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.core.events import Abandoned
from tidemark.core.plan import Plan
from tidemark.errors import PlanLanded
from tidemark.ports import Clock, ControlTable, DataTable, MarkReader
from tidemark.services.ingest import plan_record
from tidemark.services.recording import check_ledger, record_landing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Gives open plans of one pipeline up. A driver that still works on one cannot land it."""

    pipeline: str
    marks: MarkReader
    control: ControlTable
    table: DataTable
    now: Clock

    def give_up(self, sequence: int, requested_by: str, reason: str) -> Plan:
        """Fence a plan off the data table, then record that it was given up.

        In this order: once the fence is up, no driver can land the plan, so its offsets are safe
        to plan again. A plan that was given up already stays so.

        Raises:
            UnknownPlan: No such plan.
            TableBehindLedger, LedgerBehindTable, TableRestored: The data table and the control
                table are not of one history.
            PlanLanded: It has landed; if that was not recorded, it is now.
            FenceConflict, ControlConflict: Somebody else wrote first; the same call looks again.
        """
        ledger = self.control.ledger(self.pipeline)
        check_ledger(ledger, self.table)
        record = plan_record(ledger, sequence)
        plan = record.plan
        if record.abandoned is not None:
            return plan
        landing = record.landing or self.table.find(plan)
        if landing is None:
            self.table.fence(plan)
            given_up = Abandoned(sequence=sequence, requested_by=requested_by, reason=reason)
            self.control.append(ledger, [given_up], self.now())
            log.info("abandoned pipeline=%s plan=%d", plan.pipeline, sequence)
            return plan
        if record.landing is None:
            marks = self.marks.topic_marks(plan.topic, plan.isolation_level)
            record_landing(self.control, ledger, plan, landing, marks, self.now())
        raise PlanLanded(pipeline=plan.pipeline, sequence=sequence)

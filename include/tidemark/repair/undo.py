"""Undoing a plan: its rows leave the data table, and its offsets are unread again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from tidemark.core.events import Undone, UndoStarted
from tidemark.core.ledger import PlanRecord
from tidemark.core.plan import Plan
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.errors import PlanAbandoned
from tidemark.ingest.protocols import Clock, ControlTable, DataTable
from tidemark.ingest.recorder import checked_ledger, recorded_plan
from tidemark.repair.errors import PlanNotLanded

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoOutcome:
    """What undoing a plan came to.

    Attributes:
        plan: The plan.
        rows: Rows that left the table, or would.
    """

    plan: Plan
    rows: int

    def as_record(self) -> dict[str, Any]:
        """The outcome as plain values, for `--json`."""
        return {**self.plan.as_record(), "rows": self.rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Takes landed plans of one pipeline out again, exactly."""

    pipeline: str
    control: ControlTable
    table: DataTable
    now: Clock

    def undo(
        self, sequence: int, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> UndoOutcome:
        """Record that the undo begins, remove the plan's rows, record that the undo is complete.

        In this order: from the first step on no process relies on the rows, and no process plans
        their offsets before the last step. After an interruption, a repetition continues. A plan
        that was undone already stays so.

        Args:
            sequence: The plan.
            requested_by: The operator.
            reason: The operator's reason.
            dry_run: Only return the rows to remove.

        Raises:
            UnknownPlan: No such plan.
            PlanNotLanded: It is open; it can be abandoned instead.
            PlanAbandoned: It was abandoned, so none of its rows are in the table.
            TableBehindLedger, LedgerBehindTable, TableRestored: The data table and the control
                table are not of one history.
            UnreadableFile: A file with rows of the plan and of others cannot be read; nothing is
                recorded.
            EngineFailed: The rows could not be removed; do it again.
            ControlConflict: Concurrent processes were first, several times.
        """
        record = retry_on_conflict(lambda: self._begun(sequence, requested_by, reason, dry_run))
        plan = record.plan
        if record.undone_at is not None:
            return UndoOutcome(plan=plan, rows=0)
        if dry_run:
            return UndoOutcome(plan=plan, rows=self.table.current_landing(plan).records)
        rows, version = self.table.remove_rows(plan)
        undone = Undone(
            sequence=sequence, requested_by=requested_by, reason=reason, table_version=version
        )
        retry_on_conflict(lambda: self._record(undone))
        log.info("undone pipeline=%s plan=%d rows=%d", plan.pipeline, sequence, rows)
        return UndoOutcome(plan=plan, rows=rows)

    def _begun(self, sequence: int, requested_by: str, reason: str, dry_run: bool) -> PlanRecord:
        """The plan, of which it is recorded that it is being undone."""
        ledger = checked_ledger(self.control, self.pipeline, self.table)
        record = recorded_plan(self.control, self.pipeline, sequence)
        if record.is_open:
            raise PlanNotLanded(pipeline=self.pipeline, sequence=sequence)
        if record.landing is None and not record.undoing and record.undone_at is None:
            raise PlanAbandoned(
                pipeline=self.pipeline, sequence=sequence, reason=record.abandoned or ""
            )
        if record.landing is not None and not dry_run:
            # Once the undo is recorded, no other command continues before its end.
            self.table.check_removable(record.plan)
            is_current = record.plan.topic_id == ledger.topic_id
            begun = UndoStarted(
                sequence=sequence,
                requested_by=requested_by,
                reason=reason,
                committed=ledger.committed_without(record.landing.spans()) if is_current else {},
            )
            self.control.append(ledger, [begun], self.now())
        return record

    def _record(self, undone: Undone) -> None:
        # A RESTORE meanwhile may have brought back what the plan had replaced.
        # fence: restore-during-undo
        ledger = checked_ledger(self.control, self.pipeline, self.table)
        record = recorded_plan(self.control, self.pipeline, undone.sequence)
        if record.undoing:
            self.control.append(ledger, [undone], self.now())

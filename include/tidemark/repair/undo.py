"""Undo of landed plans: removes their rows, so that their offsets are unread again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from tidemark.core.events import Abandoned, Undone, UndoStarted
from tidemark.core.ledger import PlanRecord
from tidemark.core.plan import Plan
from tidemark.core.table_state import check_survives_restores
from tidemark.ingest.errors import PlanCancelled
from tidemark.ingest.ledgers import checked_ledger, recorded_plan
from tidemark.ingest.protocols import Clock, ControlTable, DataTable
from tidemark.lake.conflicts import retry_on_conflict
from tidemark.lake.errors import RemovalFenced
from tidemark.repair.errors import PlanNotLanded

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """Result of an undo.

    Attributes:
        plan: The plan.
        rows: Number of rows removed, or to remove in a dry run.
    """

    plan: Plan
    rows: int

    def as_record(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
        return {**self.plan.as_record(), "rows": self.rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Removes exactly the rows of landed plans of one pipeline."""

    pipeline: str
    control: ControlTable
    table: DataTable
    now: Clock

    def undo(
        self, sequence: int, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> UndoResult:
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
            UnknownPlan: The control table has no such plan.
            PlanNotLanded: The plan is open; it can be abandoned instead.
            PlanCancelled: The plan was abandoned, or a RESTORE removed its rows.
            UnreadableFile: A file with rows of the plan and of others cannot be read; nothing is
                recorded.
            EngineFailed: The outcome of the removal is unknown; run the undo again.
            RemovalConflict: Other processes changed the table in every attempt; run the undo again.
            RemovalFenced: A repair ran during the undo, and the rows are still or again in the
                table; run the undo again.
            TableRestored: A RESTORE brought the rows back; run the undo again.
            HistoriesDiverge, ControlConflict: See `checked_ledger` and `retry_on_conflict`.
        """
        record, epoch = retry_on_conflict(
            lambda: self._record_start(sequence, requested_by, reason, dry_run)
        )
        plan = record.plan
        if record.undone_version is not None:
            return UndoResult(plan=plan, rows=0)
        if dry_run:
            return UndoResult(plan=plan, rows=self.table.current_landing(plan).records)
        rows, version = self.table.remove_rows(plan, epoch)
        undone = Undone(
            sequence=sequence, requested_by=requested_by, reason=reason, table_version=version
        )
        retry_on_conflict(lambda: self._record_end(undone))
        log.info("undone pipeline=%s plan=%d rows=%d", plan.pipeline, sequence, rows)
        return UndoResult(plan=plan, rows=rows)

    def _record_start(
        self, sequence: int, requested_by: str, reason: str, dry_run: bool
    ) -> tuple[PlanRecord, int]:
        """Record that the undo starts, unless it already has; return plan record and epoch."""
        ledger = checked_ledger(self.control, self.pipeline, self.table)
        record = recorded_plan(self.control, self.pipeline, sequence)
        if record.is_open:
            raise PlanNotLanded(pipeline=self.pipeline, sequence=sequence)
        end = record.cancelled_by
        if isinstance(end, Abandoned) or (isinstance(end, Undone) and end.table_version is None):
            raise PlanCancelled.by(self.pipeline, sequence, end)
        if record.held_now is not None and not dry_run:
            # Checked first: a recorded undo blocks all other commands until it is complete.
            self.table.check_removable(record.plan)
            is_current = record.plan.topic_id == ledger.topic_id
            started = UndoStarted(
                sequence=sequence,
                requested_by=requested_by,
                reason=reason,
                committed=ledger.committed_without(record.held_now.spans()) if is_current else {},
            )
            self.control.append(ledger, [started], self.now())
        return record, ledger.epoch

    def _record_end(self, undone: Undone) -> None:
        # A RESTORE during the undo may have restored rows that the plan had replaced.
        # fence: restore-during-undo
        ledger = checked_ledger(self.control, self.pipeline, self.table)
        record = recorded_plan(self.control, self.pipeline, undone.sequence)
        if record.undoing and undone.table_version is not None:
            # The ledger lacks the removal's version. If another plan has landed after a RESTORE,
            # `checked_ledger` reads later RESTOREs only.
            since = self.table.state(self.pipeline, (), restores_since=undone.table_version)
            # fence: restore-of-unrecorded-removal
            check_survives_restores(record.plan, undone.table_version, since.restores)
            self.control.append(ledger, [undone], self.now())
        elif not isinstance(record.cancelled_by, Undone):
            # A repair followed a RESTORE during the undo, and recorded the plan as landed.
            raise RemovalFenced(pipeline=self.pipeline, sequence=undone.sequence)

"""Abandoning open plans, so that their offsets can be planned again."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.bronze.ingest.errors import PlanCancelled
from tidemark.bronze.ingest.ledgers import read_compared_ledger, recorded_plan
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.recorder import Recorder
from tidemark.bronze.repair.errors import NothingToDo, RowsInDoubt, UndoUnfinished
from tidemark.core.accounting import Landing
from tidemark.core.errors import TopicDiffers
from tidemark.core.events import Abandoned, Undone
from tidemark.core.ledger import CheckedLedger, Ledger, PlanRecord
from tidemark.core.plan import Plan
from tidemark.core.table_state import TableState
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Abandon:
    """Abandons open plans of one pipeline. A driver that still executes one cannot land it."""

    spec: PipelineSpec
    ports: Ports

    def abandon(
        self,
        sequence: int,
        requested_by: str,
        reason: str,
        *,
        discard: bool = False,
        dry_run: bool = False,
    ) -> Plan:
        """Fence a plan in the data table, then record that it is abandoned.

        In this order: after the fence no driver can land the plan, so its offsets can be planned
        again. Abandoning an abandoned plan changes nothing.

        Args:
            sequence: Plan number.
            requested_by: The operator.
            reason: The operator's reason.
            discard: Remove the plan's rows if it landed while its topic was recreated.
            dry_run: Only check; write nothing.

        Raises:
            InvalidSelection: The control table has no such plan.
            NothingToDo: The plan has landed; the landing is recorded.
            UndoUnfinished: The plan is being undone.
            PlanCancelled: The plan was undone, or a RESTORE removed its rows.
            RowsInDoubt: The plan landed while its topic was recreated, and `discard` is false.
            RecordsMissed: The plan has landed without some visible records; the landing is
                recorded.
            KafkaFailure: Kafka did not answer about the topic of a landed plan.
            TableAltered: The control table cannot be written.
            TableAltered, StorageFailure, UnreadableFile: The rows to discard cannot be removed.
            TableReplaced: An older copy replaced the data table meanwhile.
            HistoriesDiverge, CommitConflict: See `ledgers.compare_ledger` and `retry_on_conflict`.
        """
        abandoned = Abandoned(sequence=sequence, requested_by=requested_by, reason=reason)
        return retry_on_conflict(
            lambda: self._attempt_abandon(abandoned, discard=discard, dry_run=dry_run)
        )

    def _attempt_abandon(self, abandoned: Abandoned, *, discard: bool, dry_run: bool) -> Plan:
        ledger, seen = read_compared_ledger(self.ports.control, self.spec.name, self.ports.table)
        record = recorded_plan(self.ports.control, self.spec.name, abandoned.sequence)
        plan = record.plan
        if record.undoing:
            raise UndoUnfinished(pipeline=plan.pipeline, sequence=plan.sequence)
        if isinstance(record.cancelled_by, Undone):
            raise PlanCancelled.by(plan.pipeline, plan.sequence, record.cancelled_by)
        if dry_run:
            self._check(record, discard=discard)
            return plan
        if record.cancelled_by is None:
            self._abandon(ledger, seen, record, abandoned, discard=discard)
        if discard:
            # Last: the rows may be removed only after the plan is recorded as abandoned.
            removed, _ = self.ports.table.remove_rows(plan, ledger.epoch, seen)
            log.info("discarded pipeline=%s plan=%d rows=%d", plan.pipeline, plan.sequence, removed)
        return plan

    def _check(self, record: PlanRecord, *, discard: bool) -> None:
        """Raise `NothingToDo` or `RowsInDoubt` if the plan has landed; write nothing."""
        plan = record.plan
        landing = record.held_now or (
            self.ports.table.find_landing(plan) if record.is_open else None
        )
        if discard:
            self.ports.table.check_removable(plan)
        if landing is None:
            return
        if record.is_open and not plan.replaces:
            try:
                Recorder(ports=self.ports).check_same_topic(plan)
            except TopicDiffers as changed:
                if discard:
                    return
                raise RowsInDoubt(
                    pipeline=plan.pipeline, sequence=plan.sequence, rows=landing.records
                ) from changed
        raise NothingToDo.of_landed_plan(plan.pipeline, plan.sequence)

    def _abandon(
        self,
        ledger: CheckedLedger,
        seen: TableState,
        record: PlanRecord,
        abandoned: Abandoned,
        *,
        discard: bool,
    ) -> None:
        plan = record.plan
        if record.held_now is not None:
            raise NothingToDo.of_landed_plan(plan.pipeline, plan.sequence)
        if discard:
            self.ports.table.check_removable(plan)
        self.ports.control.check_appends()
        # In this order: a plan without a commit after the fence can never land.
        self.ports.table.fence(plan, seen)  # fence: abandoned-plan-is-fenced
        landing = self.ports.table.find_landing(plan)  # fence: fence-before-look
        if landing is not None:
            self._record(ledger, plan, landing, discard=discard)
        self.ports.control.append(ledger, [abandoned], self.ports.now())
        log.info("abandoned pipeline=%s plan=%d", plan.pipeline, plan.sequence)

    def _record(self, ledger: Ledger, plan: Plan, landing: Landing, *, discard: bool) -> None:
        """Record a landing; return only if its rows are to be discarded."""
        try:
            Recorder(ports=self.ports).record(ledger, plan, landing)
        except TopicDiffers as changed:
            if discard:
                return
            raise RowsInDoubt(
                pipeline=plan.pipeline, sequence=plan.sequence, rows=landing.records
            ) from changed
        raise NothingToDo.of_landed_plan(plan.pipeline, plan.sequence)

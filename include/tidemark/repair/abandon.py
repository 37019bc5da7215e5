"""Giving a plan up that cannot land, so that its offsets can be planned again."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.core import plan_rules as planning
from tidemark.core.accounting import Landing
from tidemark.core.errors import ClusterChanged, PartitionsShrunk, TopicRecreated
from tidemark.core.events import Abandoned
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.plan import Plan
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.protocols import Clock, ControlTable, DataTable, LogReader, WatermarkReader
from tidemark.ingest.recorder import Recorder, checked_ledger, recorded_plan
from tidemark.repair.errors import PlanLanded, RowsInDoubt

log = logging.getLogger(__name__)

_IN_DOUBT = (TopicRecreated, ClusterChanged, PartitionsShrunk)
"""Why nobody can tell whose records a plan read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Gives open plans of one pipeline up. A driver that still works on one cannot land it."""

    pipeline: str
    watermarks: WatermarkReader
    control: ControlTable
    table: DataTable
    log_reader: LogReader
    now: Clock

    def abandon(
        self,
        sequence: int,
        requested_by: str,
        reason: str,
        *,
        discard: bool = False,
        dry_run: bool = False,
    ) -> Plan:
        """Fence a plan off the data table, then record that it was given up.

        In this order: once the fence is up, no driver can land the plan, so its offsets are safe
        to plan again. A plan that was given up already stays so.

        Args:
            sequence: The plan.
            requested_by: Who gives it up.
            reason: Why, in their words.
            discard: Remove its rows if it landed while its topic was made again.
            dry_run: Only say which plan it would be.

        Raises:
            UnknownPlan: No such plan.
            TableBehindLedger, LedgerBehindTable, TableRestored: The data table and the control
                table are not of one history.
            PlanLanded: It has landed; if that was not recorded, it is now.
            RowsInDoubt: It landed while its topic was made again, and `discard` was not said.
            TransactionConflict, ControlConflict: Others were first, several times over.
        """
        given_up = Abandoned(sequence=sequence, requested_by=requested_by, reason=reason)
        return retry_on_conflict(lambda: self._once(given_up, discard=discard, dry_run=dry_run))

    def _once(self, given_up: Abandoned, *, discard: bool, dry_run: bool) -> Plan:
        ledger = checked_ledger(self.control, self.pipeline, self.table)
        record = recorded_plan(self.control, self.pipeline, given_up.sequence)
        plan = record.plan
        if dry_run:
            self._draft(record, discard=discard)
            return plan
        if record.abandoned is None:
            self._settle(ledger, record, given_up, discard=discard)
        if discard:
            # Last: rows may go only once it is recorded that nobody counts on them.
            removed, _ = self.table.remove_rows(plan)
            log.info("discarded pipeline=%s plan=%d rows=%d", plan.pipeline, plan.sequence, removed)
        return plan

    def _draft(self, record: PlanRecord, *, discard: bool) -> None:
        """Refuse what `_settle` would refuse; write nothing."""
        plan = record.plan
        landing = record.landing or (self.table.find_landing(plan) if record.is_open else None)
        if landing is None:
            return
        if record.is_open and not plan.replaces:
            try:
                watermarks = self.watermarks.topic_watermarks(plan.topic, plan.isolation_level)
                planning.check_same_topic(plan, watermarks)
            except _IN_DOUBT as changed:
                if discard:
                    return
                raise RowsInDoubt(
                    pipeline=plan.pipeline, sequence=plan.sequence, rows=landing.records
                ) from changed
        raise PlanLanded(pipeline=plan.pipeline, sequence=plan.sequence)

    def _settle(
        self, ledger: Ledger, record: PlanRecord, given_up: Abandoned, *, discard: bool
    ) -> None:
        plan = record.plan
        if record.landing is not None:
            raise PlanLanded(pipeline=plan.pipeline, sequence=plan.sequence)
        # In this order: what is not there once the fence is up never will be.
        self.table.fence(plan)  # fence: abandoned-plan-is-fenced
        landing = self.table.find_landing(plan)  # fence: fence-before-look
        if landing is not None:
            self._record(ledger, plan, landing, discard=discard)
        self.control.append(ledger, [given_up], self.now())
        log.info("abandoned pipeline=%s plan=%d", plan.pipeline, plan.sequence)

    def _record(self, ledger: Ledger, plan: Plan, landing: Landing, *, discard: bool) -> None:
        """Record a landing that was found; return only if it is to be discarded."""
        recorder = Recorder(
            control=self.control,
            data_log=self.table,
            watermarks=self.watermarks,
            log_reader=self.log_reader,
            now=self.now,
        )
        try:
            recorder.record(ledger, plan, landing)
        except _IN_DOUBT as changed:
            if discard:
                return
            raise RowsInDoubt(
                pipeline=plan.pipeline, sequence=plan.sequence, rows=landing.records
            ) from changed
        raise PlanLanded(pipeline=plan.pipeline, sequence=plan.sequence)

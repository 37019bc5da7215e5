"""Checks the rows that a plan landed in the data table. Does not read the topic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from tidemark.bronze.ingest.ledgers import read_checked_ledger, recorded_plan, refuse_cancelled
from tidemark.bronze.ingest.ports import Ports
from tidemark.core.accounting import Landing
from tidemark.core.events import PublicationDecided
from tidemark.core.ledger import CheckedLedger
from tidemark.core.plan import Plan
from tidemark.core.publication import PublicationStatus
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import ControlConflict
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.quality.check_results import BatchRef, CheckOutcome, QualityReport, RecordedRange
from tidemark.quality.errors import QualityFailed
from tidemark.quality.publication_service import landing_of
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


class QualityChecker(Protocol):
    """Runs quality suites on landed batches, and stores the results."""

    def check(
        self,
        ref: BatchRef,
        expected: Sequence[RecordedRange],
        suite: str | None,
        run_at: datetime,
    ) -> QualityReport:
        """Check a batch. A failed check is a result, not an exception.

        Raises:
            SpecError: The suite's file is invalid.
        """

    def record(self, report: QualityReport) -> None:
        """Store a report as a new attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Checks landed plans of one pipeline with its quality suite.

    Attributes:
        spec: The pipeline.
        data_table: Path or URI of its data table.
        ports: The ports of this table.
        checker: Runs the suite and stores the results.
    """

    spec: PipelineSpec
    data_table: str
    ports: Ports
    checker: QualityChecker

    def check(self, sequence: int) -> QualityReport:
        """Check one landed plan, store the results, and publish or block the plan.

        A repetition adds another attempt. If checks run at the same time, a block wins.

        Raises:
            InvalidSelection, PlanStillOpen: There is no such plan, or it has not landed.
            PlanCancelled: The plan was abandoned or undone, perhaps during the check.
            TableAltered: The control table cannot be written.
            HistoriesDiverge, ControlConflict: See `read_checked_ledger` and `retry_on_conflict`.
        """
        with tables_opened_once():
            ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
            plan, landing = self.landed(sequence)
            self.ports.control.check_appends()
        expected = RecordedRange.of(plan, landing)
        ref = self.batch_ref(plan, landing)
        report = self.checker.check(ref, expected, self.spec.suite, self.ports.now())
        self.checker.record(report)
        self._decide(ledger, plan, decision_of(report, plan, landing))
        return report

    def _decide(self, began: CheckedLedger, plan: Plan, decided: PublicationDecided) -> None:
        """Record the decision of a check that began with a ledger."""
        try:
            self.ports.control.append(began, [decided], self.ports.now())
        except ControlConflict:
            retry_on_conflict(lambda: self._decide_later(began.event_number, plan, decided))

    def _decide_later(self, since: int, plan: Plan, decided: PublicationDecided) -> None:
        """Record the decision of a check during which other events were recorded.

        Args:
            since: The newest event number at the start of the check.
            plan: The plan that was checked.
            decided: The decision.

        Raises:
            PlanCancelled: The plan was undone during the check.
            ControlConflict: Other processes were first, or a recreated table has another plan of
                this number.
        """
        ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
        record = recorded_plan(self.ports.control, self.spec.name, plan.sequence)
        refuse_cancelled(record)
        # fence: decision-is-about-the-checked-plan
        if record.plan.fingerprint != plan.fingerprint:
            raise ControlConflict(pipeline=plan.pipeline, event_number=ledger.event_number)
        # fence: concurrent-block-wins
        if decided.status.is_visible and _is_blocked_after(since, record.decision):
            log.info("stays blocked pipeline=%s plan=%d", plan.pipeline, plan.sequence)
            return
        self.ports.control.append(ledger, [decided], self.ports.now())

    def landed(self, sequence: int) -> tuple[Plan, Landing]:
        """Return a landed plan, and its rows in the newest version if it lost rows to later plans.

        Errors are those of `check`.
        """
        record = recorded_plan(self.ports.control, self.spec.name, sequence)
        landing = landing_of(record)
        if record.held_now is not None and record.held_now.counts != landing.counts:
            # Later plans replaced rows of the plan. Only the newest version has the other rows.
            newest = self.ports.table.current_landing(record.plan).table_version
            landing = replace(record.held_now, table_version=newest)
        return record.plan, landing

    def batch_ref(self, plan: Plan, landing: Landing) -> BatchRef:
        """Return the reference to the rows of a landed plan."""
        return BatchRef(
            pipeline=self.spec.name,
            table=self.data_table,
            table_version=landing.table_version,
            plan_sequence=plan.sequence,
            kind=plan.kind,
        )


def decision_of(report: QualityReport, plan: Plan, landing: Landing) -> PublicationDecided:
    """Return the decision of a check about the rows that it read."""
    blocks = report.outcome is CheckOutcome.FAILED  # fence: failed-check-blocks
    return PublicationDecided(
        sequence=plan.sequence,
        status=PublicationStatus.BLOCKED if blocks else PublicationStatus.PUBLISHED,
        topic_id=plan.topic_id,
        spans=landing.spans(),
        reason="; ".join(each.expectation for each in report.failed_critical()) or None,
    )


def _is_blocked_after(since: int, decision: PublicationDecided | None) -> bool:
    """Return whether an effective decision is of a check that blocked the plan after an event."""
    return (
        decision is not None
        and decision.status is PublicationStatus.BLOCKED
        and (decision.number or 0) > since
    )


def raise_if_failed(report: QualityReport) -> None:
    """Raise `QualityFailed`, which fails the run, if a critical check failed."""
    failed = tuple(result.name for result in report.failed_critical())
    if failed:
        raise QualityFailed(
            pipeline=report.pipeline,
            sequence=report.plan_sequence,
            failed=failed,
            data_docs=report.data_docs,
        )

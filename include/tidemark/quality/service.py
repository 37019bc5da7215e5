"""Checks the rows that a plan landed in the data table. Does not read the topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tidemark.core.accounting import Landing
from tidemark.core.plan import Plan
from tidemark.ingest.ledgers import recorded_plan
from tidemark.ingest.protocols import Clock, ControlReader, DataLog
from tidemark.quality.check_results import BatchRef, QualityReport, RecordedRange
from tidemark.quality.errors import QualityFailed
from tidemark.quality.publication import PublicationDecision
from tidemark.quality.publication_service import landing_of
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from tidemark.quality.publication_table import DeltaPublicationTable


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
            SuiteError: The suite's file is invalid.
        """

    def record(self, report: QualityReport) -> None:
        """Store a report as a new attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Checks landed plans of one pipeline with its quality suite.

    Attributes:
        spec: The pipeline.
        data_table: Path or URI of its data table.
        data_log: The log of the data table.
        control: The control table.
        checker: Runs the suite and stores the results.
        publication: The publication table.
        now: The clock.
    """

    spec: PipelineSpec
    data_table: str
    data_log: DataLog
    control: ControlReader
    checker: QualityChecker
    publication: DeltaPublicationTable
    now: Clock

    def check(self, sequence: int) -> QualityReport:
        """Check one landed plan, store the results, and publish or block the plan.

        A repetition adds another attempt. If checks run at the same time, a block wins.

        Raises `UnknownPlan`, and the errors of `landing_of`.
        """
        # Before the plan is read: another process may recreate the data table during the check.
        table_id = self.publication.table_id()
        plan, landing = self.landed(sequence)
        expected = RecordedRange.of(plan, landing)
        ref = self.batch_ref(plan, landing)
        earlier = self.publication.decisions(self.spec.name, sequence)
        report = self.checker.check(ref, expected, self.spec.suite, self.now())
        self.checker.record(report)
        newest = self.publication.decisions(self.spec.name, sequence)
        during = [decision for decision in newest if decision not in earlier]
        decision = PublicationDecision.from_report(report, earlier, during)
        self.publication.append(plan, landing, decision, table_id=table_id)
        return report

    def landed(self, sequence: int) -> tuple[Plan, Landing]:
        """Return a landed plan, and its rows in the newest version if it lost rows to later plans.

        Errors are those of `check`.
        """
        record = recorded_plan(self.control, self.spec.name, sequence)
        landing = landing_of(record)
        if record.held_now is not None and record.held_now.counts != landing.counts:
            # Later plans replaced rows of the plan. Only the newest version has the other rows.
            newest = self.data_log.current_landing(record.plan).table_version
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

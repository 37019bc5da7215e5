"""Judging what a plan landed: the written slice, never the topic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from tidemark.core.accounting import Landing
from tidemark.core.plan import Plan
from tidemark.ingest.protocols import Clock, ControlReader, DataLog
from tidemark.ingest.recorder import recorded_plan
from tidemark.quality.check_results import BatchExpectation, BatchRef, QualityReport
from tidemark.quality.errors import QualityFailed
from tidemark.quality.publication import PublicationDecision
from tidemark.quality.publication_service import PublicationTable, landing_of
from tidemark.spec.model import PipelineSpec


class QualityChecker(Protocol):
    """Runs quality suites over landed slices and keeps the results."""

    def check(
        self,
        ref: BatchRef,
        expected: Sequence[BatchExpectation],
        suite: str | None,
        run_at: datetime,
    ) -> QualityReport:
        """Validate a slice; a failed expectation is a result, not an exception.

        Raises:
            SpecError: The suite's file cannot be used.
        """
        ...

    def record(self, report: QualityReport) -> None:
        """Keep a report's results as one more attempt."""
        ...


class QualityPages(Protocol):
    """The pages of quality checks; their results are in a table."""

    def prune(self, now: datetime, keep: timedelta, *, dry_run: bool = False) -> int:
        """Remove pages of checks that are older than `keep`, except each pipeline's newest.

        Args:
            now: The time by this machine's clock.
            keep: How long pages stay.
            dry_run: Only count them, and use this machine's clock.

        Returns:
            The number of pages.

        Raises:
            ClockDiffers: The file system's clock differs; nothing was removed.
        """
        ...


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Runs the quality suite of one pipeline over what its plans landed.

    Attributes:
        spec: The pipeline.
        data_table: Path or URI of its data table.
        data_log: That table's log.
        control: Where the plan and its counts are recorded.
        checker: Runs the suite and keeps the results.
        publication: The publication table.
        now: The clock.
    """

    spec: PipelineSpec
    data_table: str
    data_log: DataLog
    control: ControlReader
    checker: QualityChecker
    publication: PublicationTable
    now: Clock

    def check(self, sequence: int) -> QualityReport:
        """Check one landed plan, keep the result, and publish or block the plan by it.

        Repeating it adds another attempt.

        Raises:
            UnknownPlan: No such plan.
            PlanAbandoned: It was given up.
            PlanNotLanded: Nothing to check yet.
        """
        plan, landing = self.landed(sequence)
        expected = BatchExpectation.of(plan, landing)
        ref = self.batch_ref(plan, landing)
        report = self.checker.check(ref, expected, self.spec.suite, self.now())
        self.checker.record(report)
        self.publication.append(plan, landing, PublicationDecision.from_report(report))
        log.info("checked pipeline=%s plan=%d outcome=%s", self.spec.name, sequence, report.outcome)
        return report

    def landed(self, sequence: int) -> tuple[Plan, Landing]:
        """A plan that can be checked, and what is there of it. Raises what `check` does."""
        record = recorded_plan(self.control, self.spec.name, sequence)
        landing = landing_of(record)
        if record.held_now is not None and record.held_now.counts != landing.counts:
            # It has lost rows to others: what is left of it is in the newest version alone.
            newest = self.data_log.current_landing(record.plan).table_version
            landing = replace(record.held_now, table_version=newest)
        return record.plan, landing

    def batch_ref(self, plan: Plan, landing: Landing) -> BatchRef:
        """Where the rows of a landed plan are."""
        return BatchRef(
            pipeline=self.spec.name,
            table=self.data_table,
            table_version=landing.table_version,
            plan_sequence=plan.sequence,
            kind=plan.kind,
        )


def raise_if_failed(report: QualityReport) -> None:
    """Raise the error that fails a run if a critical check failed.

    Raises:
        QualityFailed: A critical check did not hold.
    """
    failed = tuple(result.name for result in report.failed_critical())
    if failed:
        raise QualityFailed(
            pipeline=report.pipeline,
            sequence=report.plan_sequence,
            failed=failed,
            data_docs=report.data_docs,
        )

"""Judging what a plan landed: the written slice, never the topic."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from tidemark.core.landing import Landing
from tidemark.core.plan import Plan
from tidemark.core.quality import QualityReport, SliceExpectation, SliceRef
from tidemark.core.spec import PipelineSpec
from tidemark.core.standing import Word
from tidemark.errors import QualityFailed
from tidemark.ports import Clock, ControlReader, DataLog, QualityChecker, VerdictTable
from tidemark.services.recording import recorded_plan
from tidemark.services.verdicts import landing_of

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
        verdicts: Where it is said whether the plan is published.
        now: The clock.
    """

    spec: PipelineSpec
    data_table: str
    data_log: DataLog
    control: ControlReader
    checker: QualityChecker
    verdicts: VerdictTable
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
        expected = SliceExpectation.of(plan, landing)
        ref = self.slice_of(plan, landing)
        report = self.checker.check(ref, expected, self.spec.suite, self.now())
        self.checker.record(report)
        self.verdicts.say(plan, landing, Word.of(report))
        log.info("checked pipeline=%s plan=%d verdict=%s", self.spec.name, sequence, report.verdict)
        return report

    def landed(self, sequence: int) -> tuple[Plan, Landing]:
        """A plan that can be checked, and what is there of it. Raises what `check` does."""
        record = recorded_plan(self.control, self.spec.name, sequence)
        landing = landing_of(record)
        if record.landing is not None and record.landing.counts != landing.counts:
            # It has lost rows to others: what is left of it is in the newest version alone.
            newest = self.data_log.held(record.plan).table_version
            landing = replace(record.landing, table_version=newest)
        return record.plan, landing

    def slice_of(self, plan: Plan, landing: Landing) -> SliceRef:
        """Where the rows of a landed plan are."""
        return SliceRef(
            pipeline=self.spec.name,
            table=self.data_table,
            table_version=landing.table_version,
            plan_sequence=plan.sequence,
            kind=plan.kind,
        )


def raise_if_failed(report: QualityReport) -> None:
    """Turn a failed verdict into the error that fails a run.

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

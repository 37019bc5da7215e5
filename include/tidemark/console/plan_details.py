"""A plan with its newest check and its publication, for the pages of plans and of DAG runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.app.pipeline import Pipeline
from tidemark.console.context import PageContext
from tidemark.core.events import PublicationDecided
from tidemark.core.plan import PlanKind
from tidemark.core.plan_history import PlanEntry, PlanState
from tidemark.core.publication import NOT_CHECKED, PublicationStatus
from tidemark.ops.report.errors import landing_command
from tidemark.quality.check_results import CheckedPlan, CheckResult, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDetails:
    """A plan, its newest check and its publication.

    Attributes:
        name: The pipeline.
        entry: The plan and its events.
        checked: Results of its newest check; None without one.
        observed: Returns what a check observed, by the rights of the viewer.
    """

    name: str
    entry: PlanEntry
    checked: CheckedPlan | None
    observed: Callable[[CheckResult], str]

    @property
    def has_rows(self) -> bool:
        """Whether the table has rows of the plan now."""
        return self.entry.record.has_rows

    @property
    def decision(self) -> PublicationDecided | None:
        """The effective publication decision; None unless it covers all rows of the plan."""
        return self.entry.record.whole_decision

    @property
    def publication(self) -> str | None:
        """The publication status; None without rows."""
        return self.entry.record.publication_status if self.has_rows else None

    @property
    def results(self) -> Sequence[CheckResult]:
        """Results of the newest check: failed critical rules first, then other failed ones."""
        results = self.checked.results if self.checked else ()
        return sorted(results, key=_effect)

    @property
    def failed(self) -> Sequence[CheckResult]:
        """Failed rules of the newest check."""
        return [each for each in self.results if not each.passed]

    @property
    def is_blocked(self) -> bool:
        """Whether a failed check hides the rows of the plan."""
        return self.publication == PublicationStatus.BLOCKED

    @property
    def is_unchecked(self) -> bool:
        """Whether a missing check hides the rows of the plan."""
        return self.publication == NOT_CHECKED

    @property
    def needs_attention(self) -> bool:
        """Whether work is left: the plan is open, unchecked or blocked."""
        return self.entry.state is PlanState.OPEN or self.is_unchecked or self.is_blocked

    @property
    def is_continued_by_next_run(self) -> bool:
        """Whether the next run continues the plan while it is open. It continues no backfill."""
        return self.entry.record.plan.kind is PlanKind.LIVE

    @property
    def landing_command(self) -> str:
        """Arguments of `tidemark` that execute the plan."""
        return landing_command(self.name, self.entry.record.plan.sequence)


def plan_details(context: PageContext, pipeline: Pipeline, entry: PlanEntry) -> PlanDetails:
    """Return a plan of a pipeline with its newest check."""
    ref = entry.record.plan.ref
    return PlanDetails(
        name=ref.pipeline,
        entry=entry,
        checked=pipeline.check_results.checked([ref]).get(ref),
        observed=context.observed(pipeline),
    )


def publication_statuses(entries: Sequence[PlanEntry]) -> Mapping[int, str]:
    """Return the publication status of each plan with rows by its number."""
    records = [each.record for each in entries if each.record.has_rows]
    return {record.plan.sequence: record.publication_status for record in records}


def _effect(result: CheckResult) -> int:
    if result.passed:
        return 2
    return 0 if result.severity is Severity.CRITICAL else 1

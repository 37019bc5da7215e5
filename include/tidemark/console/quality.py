"""Pages about data quality: checks of the newest plans, the owner's report, the quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import Query

from tidemark.app.adapters import utc_now
from tidemark.app.pipeline import Pipeline
from tidemark.console.context import PLANS_PER_PAGE, Number, Page, PageContext
from tidemark.console.plan_details import publication_statuses
from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_or_error
from tidemark.core.plan import PlanRef
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.ops.report.page import report_values
from tidemark.quality.check_results import CheckAttempt, CheckResult
from tidemark.quality.checks import BUILT_IN_CHECKS
from tidemark.quality.data_docs import DataDocs
from tidemark.silver.typed.quarantine_record import QuarantinedRecord

QUARANTINED = 200
"""Quarantined records on a page."""
MOST_REASONS = 20
"""Reasons in the totals of the quarantine."""
REPORTED_PLANS = 1_000
"""Maximum number of plans of a report on a page, because a report reads every plan."""
REPORTED_RECORDS = 10_000
"""Maximum number of records in quarantine of a report on a page."""
MOST_DAYS = 366
"""Longest period of a report on a page, in days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt to check a plan.

    Attributes:
        attempt: The attempt.
        docs: Address of its page in Data Docs; None without a page or the right to open it.
    """

    attempt: CheckAttempt
    docs: str | None


def checks(context: PageContext, name: str, before: Number = None) -> Page:
    """The check of each of the newest plans, rule by rule."""
    pipeline = context.pipeline(name)
    entries = context.home.plans(name, before, PLANS_PER_PAGE)
    numbers = [entry.record.plan.sequence for entry in entries]
    found = pipeline.check_results.checked([entry.record.plan.ref for entry in entries])
    checked = {plan.sequence: each for plan, each in found.items()}
    return context.page(
        "quality.html",
        name=name,
        spec=pipeline.spec,
        entries=entries,
        checked=checked,
        observed=context.observed(pipeline),
        suite_error=context.suite_error(pipeline),
        statuses=publication_statuses(entries),
        older=numbers[-1] if numbers else 1,
    )


@tables_opened_once()
def report(
    context: PageContext, name: str, days: Annotated[int, Query(ge=1, le=MOST_DAYS)] = 30
) -> Page:
    """The owner's report of the last days, or its command if the page would take too long."""
    pipeline = context.pipeline(name)
    common = {"name": name, "spec": pipeline.spec, "days": days}
    if size := _reason_against_page(pipeline):
        return context.page("report_command.html", size=size, **common)
    until = utc_now()
    found = pipeline.report.of_period(until - timedelta(days=days), until)
    if not context.viewer.may_read_payloads(pipeline.spec):
        observed = context.observed(pipeline)
        hidden = [
            replace(
                plan,
                results=[
                    replace(
                        result,
                        observed=observed(result),
                        value=result.value if _is_figure_of_rows(result) else None,
                        examples=(),
                    )
                    for result in plan.results
                ],
            )
            for plan in found.checked
        ]
        unnamed = found.unnamed_fields and found.unnamed_fields.without_names()
        found = replace(found, checked=hidden, unnamed_fields=unnamed)
    values = report_values(found, lambda plan: context.link("pipelines", name, "plans", plan))
    return context.page("owner_report.html", **common, **values)


def _reason_against_page(pipeline: Pipeline) -> str | None:
    """Return why a report takes too long for a page; None if it does not."""
    newest = pipeline.control.summary(pipeline.name).last_sequence
    if newest > REPORTED_PLANS:
        return f"{newest:,} plans, more than {REPORTED_PLANS:,}"
    if pipeline.spec.decode is None:
        return None
    records = len(pipeline.typed.quarantine.records(most=REPORTED_RECORDS + 1))
    if records > REPORTED_RECORDS:
        return f"more than {REPORTED_RECORDS:,} records in quarantine"
    return None


def report_days(landed_at: datetime | None, now: datetime) -> int | None:
    """Return the days of the shortest report that contains a landing; None if no report does."""
    if landed_at is None:
        return None
    days = max(0, (now - landed_at).days) + 1
    return days if days <= MOST_DAYS else None


def _is_figure_of_rows(result: CheckResult) -> bool:
    """Whether the figure is about rows; the figure of another rule can be a value of a column."""
    return result.check in BUILT_IN_CHECKS or result.unexpected_count is not None


def quarantine(context: PageContext, name: str) -> Page:
    """The records in quarantine: places and reasons, without their content."""
    pipeline = context.pipeline(name)
    found = result_or_error(name, lambda _: _quarantined(pipeline))
    records, reasons = ([], {}) if isinstance(found, TidemarkError) else found
    return context.page(
        "quarantine.html",
        name=name,
        spec=pipeline.spec,
        records=records[:QUARANTINED],
        is_cut=len(records) > QUARANTINED,
        reasons=reasons,
        most_reasons=MOST_REASONS,
        error=found if isinstance(found, TidemarkError) else None,
    )


def _quarantined(
    pipeline: Pipeline,
) -> tuple[list[QuarantinedRecord], Mapping[tuple[str, str | None, str | None], int]]:
    """Return the first records, and the number of all by reason, part, and field or rule."""
    quarantine = pipeline.typed.quarantine
    records = quarantine.records(most=QUARANTINED + 1)
    return records, quarantine.reasons(MOST_REASONS) if records else {}


def attempts(context: PageContext, pipeline: Pipeline, plan: PlanRef) -> Sequence[Attempt]:
    """Return all attempts to check a plan, newest first, with their Data Docs."""
    docs = DataDocs(context.home.app.layout.data_docs)
    site = docs.site(pipeline.name)
    may_read = context.viewer.may_read_payloads(pipeline.spec)
    found = []
    for attempt in pipeline.check_results.attempts(plan):
        page = docs.page(pipeline.name, plan.sequence, attempt.run_at) if may_read else None
        address = None
        if page is not None:
            path = quote(page.relative_to(site).as_posix())
            address = f"{context.link('pipelines', pipeline.name, 'quality')}/docs/{path}"
        found.append(Attempt(attempt=attempt, docs=address))
    return found


def data_docs(context: PageContext, name: str, path: str) -> Path | None:
    """Return a file of the pipeline's Data Docs.

    None if there is none, or if the viewer may not read payloads: pages contain examples of values.
    """
    pipeline = context.pipeline(name)
    if not context.viewer.may_read_payloads(pipeline.spec):
        return None
    site = DataDocs(context.home.app.layout.data_docs).site(name).resolve()
    try:
        file = (site / path).resolve()
        return file if file.is_relative_to(site) and file.is_file() else None
    except (OSError, ValueError):
        # No file can have this name: it is too long, or has a null character.
        return None

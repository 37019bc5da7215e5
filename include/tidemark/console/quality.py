"""Pages about data quality: checks and publication of the newest plans, and the quarantine."""

from __future__ import annotations

from pathlib import Path

from tidemark.console.context import Page, PageContext
from tidemark.console.pipelines import newest_plans
from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_or_error
from tidemark.quality.docs import DocsFolders
from tidemark.quality.publication import NOT_CHECKED
from tidemark.typed.quarantine_record import QuarantinedRecord

QUARANTINED = 200
"""Quarantined records on a page."""


def checks(context: PageContext, name: str, before: int | None) -> Page:
    """The check of each of the newest plans, rule by rule."""
    pipeline = context.pipeline(name)
    entries = newest_plans(pipeline, before)
    numbers = [entry.record.plan.sequence for entry in entries]
    checked = {each.sequence: each for each in pipeline.check_results.checked(name, numbers)}
    statuses = pipeline.publication.publication.statuses(name)
    return context.page(
        "quality.html",
        name=name,
        spec=pipeline.spec,
        entries=entries,
        checked=checked,
        observed=context.observed(pipeline),
        statuses={n: str(statuses.get(n, NOT_CHECKED)) for n in numbers},
        older=numbers[-1] if numbers else 1,
        has_docs=data_docs(context, name, "index.html") is not None,
    )


def quarantine(context: PageContext, name: str) -> Page:
    """The open records of the quarantine: places, reasons and sizes, without their content."""
    pipeline = context.pipeline(name)
    found = result_or_error(name, lambda _: pipeline.quarantine.records(most=QUARANTINED + 1))
    records: list[QuarantinedRecord] = [] if isinstance(found, TidemarkError) else found
    return context.page(
        "quarantine.html",
        name=name,
        spec=pipeline.spec,
        records=records[:QUARANTINED],
        is_cut=len(records) > QUARANTINED,
        error=found if isinstance(found, TidemarkError) else None,
    )


def data_docs(context: PageContext, name: str, path: str) -> Path | None:
    """Return a file of the pipeline's Data Docs.

    None if there is none, or if the viewer may not read payloads: pages contain examples of values.
    """
    pipeline = context.pipeline(name)
    if not context.viewer.may_read_payloads(pipeline.spec):
        return None
    site = DocsFolders(home=context.home.app.layout.quality_home, pipeline=name).site.resolve()
    file = (site / path).resolve()
    return file if file.is_relative_to(site) and file.is_file() else None

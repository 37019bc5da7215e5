"""`tidemark run`: all steps of some pipelines in one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import typer

from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.app.pipelines import Outcomes, for_each, plan_each
from tidemark.app.steps import plan, remaining_work
from tidemark.cli.arguments import AsJson, DryRun, Master, PipelineNames, requester
from tidemark.cli.engine import exit_with, on_engine, print_outcomes
from tidemark.cli.ingest import plan_record
from tidemark.cli.output import out, print_error_record, print_json, print_table, step
from tidemark.core.errors import TidemarkError
from tidemark.core.plan import PlanRef
from tidemark.core.texts import counted
from tidemark.quality.check_results import CheckOutcome
from tidemark.quality.errors import QualityFailed


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Plan, ingest, check, decode, upsert: all steps of a run.")(run)


def run(
    pipelines: PipelineNames,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Bring pipelines up to date: plan, ingest, check, decode, upsert, publish.

    All steps run in one process. On a Spark Connect server no JVM starts. Otherwise one
    spark-submit runs all pipelines with the same Spark settings. With nothing to do, no Spark
    starts.

    If a run stops at any point, the next run continues it. The next run lands the open plan, checks
    every landed plan without a check result, decodes published records and merges decoded records.
    A run takes these steps even if its plan is refused. A failed check ends with exit code 66; the
    data stays landed and is not published.
    """
    app = App.from_environment()
    names = list(dict.fromkeys(pipelines))
    if dry_run:
        _print_drafts(app, names, as_json=as_json)
        return
    chosen = on_engine(app, master, names)
    next_plan = partial(plan, requested_by=requester())
    plans, outcomes = plan_each(app, names, next_plan, step)
    refs = [each.ref for each in plans]
    refused = {each["pipeline"]: each for each in outcomes.records if "error" in each}
    others = [record["pipeline"] for record in outcomes.records]
    for name, result in for_each(app, others, remaining_work).items():
        if isinstance(result, TidemarkError):
            if name not in refused:
                outcomes.add(name, result)
        elif result.is_any and result.newest is not None:
            refs.append(PlanRef(pipeline=name, sequence=result.newest))
    outcomes.extend(chosen.execute("run", refs))
    records = [{**outcomes.by_pipeline[name], **refused.get(name, {})} for name in names]
    if as_json:
        print_json(records)
    else:
        print_summary(records)
    exit_with(outcomes)


_COLUMNS = (
    *("pipeline", "plan", "outcome", "landed", "checked", "decoded", "quarantined"),
    "upsert table",
)
"""The columns of the summary. They fit into 80 characters."""


def print_summary(records: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a line for each pipeline, then the errors and limits of each run."""
    rows = [(record["pipeline"], record["plan"], *_figures(record)) for record in records]
    if any("steps" in record or "error" not in record for record in records):
        print_table("Run", _COLUMNS, rows)
    for record in records:
        steps = record.get("steps", ())
        for failed in (each for each in (record, *steps) if "error" in each):
            print_error_record({**failed, "pipeline": record["pipeline"]})
        if behind := sum(step.get("left", 0) for step in steps):
            left = counted(behind, "offset")
            out.print(f"{record['pipeline']}: a limit left {left}; run the command again")


def _figures(record: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the outcome, and the sum of each kind of step; None for a kind without a step."""
    if "steps" not in record:
        return (record.get("error") or record["outcome"], *[None] * 5)
    steps = record["steps"]
    ingested, decoded, merged, published = (
        [step for step in steps if step["step"] == kind and _has_result(step)]
        for kind in ("ingest", "decode", "upsert", "publish")
    )
    checked = {_check_outcome(step) for step in steps if step["step"] == "check"}
    quarantined = sum(step["quarantined"] for step in decoded)
    failed = next((f"{step['step']} failed" for step in steps if "error" in step), None)
    visible, hidden = (
        ", ".join(sorted({step["status"] for step in published if step["published"] is each}))
        for each in (True, False)
    )
    return (
        # The status of a blocked plan is more important than the failure of its check.
        record.get("error") or hidden or failed or visible or "done",
        sum(step["records"] for step in ingested if step["wrote"]),
        ", ".join(sorted(filter(None, checked))) or None,
        sum(step["records"] for step in decoded) - quarantined if decoded else None,
        quarantined if decoded else None,
        ", ".join(step["scope"] for step in merged) or None,
    )


def _has_result(step: Mapping[str, Any]) -> bool:
    """Return whether a step has a result, which a decode also has before an error."""
    return "error" not in step or "records" in step


def _check_outcome(step: Mapping[str, Any]) -> str | None:
    """Return the outcome of a check; None if it ended without a result."""
    if step.get("error") == QualityFailed.__name__:
        return CheckOutcome.FAILED
    return step.get("outcome")


def _print_drafts(app: App, names: list[str], *, as_json: bool) -> None:
    """Print what a run would do; end with the worst exit code if a pipeline fails."""

    def draft(each: Pipeline) -> dict[str, Any]:
        result = each.planner.preview()
        offsets = result.plan.size if result.plan else 0
        return {**plan_record(result), "offsets": offsets, **remaining_work(each).as_record()}

    def line(record: Mapping[str, Any]) -> str:
        return (
            f"{record['pipeline']}: {counted(record['offsets'], 'offset')} to land, "
            f"{counted(len(record['to_check']), 'landed plan')} to check, "
            f"{counted(record['to_decode'], 'offset')} to decode, "
            f"{record['unchecked']:,} more after a check, "
            f"{'one merge' if record['to_merge'] else 'nothing'} to upsert"
        )

    print_outcomes(Outcomes.of(for_each(app, names, draft)), line, as_json=as_json)

"""`tidemark plan`: select and record the offsets to read next."""

from __future__ import annotations

from typing import Any

import typer

from tidemark.app import steps
from tidemark.app.app import App
from tidemark.bronze.ingest.planner import PlanResult
from tidemark.cli.arguments import AsJson, DryRun, PipelineName, requester
from tidemark.cli.output import out, print_json
from tidemark.core.plain import plain


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help=steps.STEPS["plan"].title)(plan)


def plan(pipeline: PipelineName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Select the unread offsets that the next run reads, and record them as a plan.

    An open plan of an earlier run is taken over, because it must land first. Execute the plan with
    `tidemark ingest PIPELINE --plan N`. For offsets of your choice see `backfill`.
    """
    planned = App.from_environment().pipeline(pipeline)
    result = steps.plan(planned, requester(), dry_run=dry_run)
    size = planned.bronze.size_estimate(result.plan) if result.plan else None
    if as_json:
        print_json({**plan_record(result), **(plain(size) or {})})
        return
    out.print(result.outcome.value)
    if result.plan and size:
        out.print(f"{result.plan.explain()}\n{size.explain()}")


def plan_record(result: PlanResult) -> dict[str, Any]:
    """Return the outcome of planning, and the plan if any, for `--json`."""
    plan = result.plan.as_record() if result.plan else None
    return {"outcome": result.outcome.value, "plan": plan}

"""`tidemark plan | ingest | check`: select offsets, land their records, and check these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from tidemark.app import option_texts, steps
from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.app.pipelines import Outcomes, for_each, plan_each
from tidemark.bronze.ingest.ledgers import recorded_plan, refuse_cancelled
from tidemark.bronze.ingest.planner import PlanOutcome, PlanResult
from tidemark.cli.arguments import AsJson, DryRun, Master, PipelineName, PipelineNames, requester
from tidemark.cli.engine import exit_with, on_engine, print_outcomes
from tidemark.cli.output import (
    err,
    out,
    print_error_record,
    print_json,
    print_table,
    print_values,
    step,
)
from tidemark.core.plain import plain
from tidemark.core.plan import PlanRef
from tidemark.quality.publication_service import landing_of


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help=steps.STEPS["plan"].title)(plan)
    app.command(short_help=steps.STEPS["ingest"].title)(ingest)
    app.command(short_help=steps.STEPS["check"].title)(check)


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


def ingest(
    pipelines: PipelineNames,
    plan_number: Annotated[
        int | None,
        typer.Option(
            "--plan",
            min=1,
            help="Number of a recorded plan of the one pipeline. By default a new plan.",
        ),
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Plan and land: read exactly the planned offsets with Spark, append them to Delta once.

    Several pipelines are planned and land concurrently in one Spark application. A pipeline that is
    refused or fails does not stop the others; its error sets the exit code. Repeating the command
    is safe: a landed plan does not land again.

    With --plan, execute that plan; if it has landed, nothing is read. With nothing to do, no Spark
    starts.
    """
    names = list(dict.fromkeys(pipelines))
    if plan_number is not None and len(names) > 1:
        raise typer.BadParameter("--plan requires exactly one pipeline")
    app = App.from_environment()
    if dry_run:
        _print_drafts(app, names, plan_number, as_json=as_json)
        return
    chosen = on_engine(app, master, names)
    if plan_number is None:
        next_plan = partial(steps.plan, requested_by=requester())
        plans, outcomes = plan_each(app, names, next_plan, step)
        refs = [each.ref for each in plans]
    else:
        outcomes = Outcomes()
        refs = [PlanRef(pipeline=names[0], sequence=plan_number)]
    outcomes.extend(chosen.execute("ingest", refs))
    records = [outcomes.by_pipeline[name] for name in names]
    if as_json:
        print_json(records)
    elif len(records) == 1:
        _print_record(records[0])
    else:
        _print_overview(records)
    exit_with(outcomes)


def check(
    pipeline: PipelineName,
    plan_number: Annotated[
        int | None,
        typer.Option("--plan", min=1, help=f"{option_texts.LANDED_PLAN} By default the newest."),
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Check the records of a landed plan with the pipeline's quality suite.

    The command writes all results to the Delta table quality/results, and results of the suite's
    rules also to Data Docs. If a critical check fails, the command ends with exit code 66, and the
    data stays landed.
    """
    app = App.from_environment()
    spec = app.pipeline(pipeline).spec
    sequence = plan_number or app.control.summary(spec.name).last_landed_sequence
    if sequence is None:
        print_json({"outcome": "nothing landed"}) if as_json else out.print("nothing landed yet")
        return
    if dry_run:
        landing_of(recorded_plan(app.control, spec.name, sequence))
        if as_json:
            print_json({"outcome": "draft", "plan": sequence, "suite": spec.suite})
        else:
            checks = f"suite {spec.suite!r}" if spec.suite else "the built-in checks"
            out.print(f"plan {sequence} of {pipeline} would be checked by {checks}")
        return
    checked = PlanRef(pipeline=pipeline, sequence=sequence)
    outcomes = on_engine(app, master, [pipeline]).execute("check", [checked])
    (record,) = outcomes.records
    print_json(record) if as_json else _print_record(record)
    exit_with(outcomes)


def _print_drafts(
    app: App, names: Sequence[str], plan_number: int | None, *, as_json: bool
) -> None:
    """Print the offsets that each pipeline would read; end with the worst exit code."""
    explained: dict[str, str] = {}

    def draft(each: Pipeline) -> dict[str, Any]:
        result = each.planner.preview() if plan_number is None else _recorded(each, plan_number)
        explained[each.name] = f"\n{result.plan.explain()}" if result.plan else ""
        return plan_record(result)

    def line(record: Mapping[str, Any]) -> str:
        return f"{record['pipeline']}: {record['outcome']}{explained[record['pipeline']]}"

    print_outcomes(Outcomes.of(for_each(app, names, draft)), line, as_json=as_json)


def _recorded(pipeline: Pipeline, sequence: int) -> PlanResult:
    """Return a recorded plan that an execution would land, or that has landed."""
    record = recorded_plan(pipeline.control, pipeline.name, sequence)
    refuse_cancelled(record)
    outcome = PlanOutcome.LANDED if record.held_now else PlanOutcome.KEPT
    return PlanResult(outcome=outcome, plan=record.plan)


def _print_record(record: Mapping[str, Any]) -> None:
    if "error" in record:
        print_error_record(record)
        return
    if "exit_code" in record:
        err.print(f"{record['outcome']}; see above")
        return
    if record.get("outcome") == PlanOutcome.NOTHING:
        out.print(record["outcome"])
        return
    values = {key: value for key, value in record.items() if key not in ("partitions", "wrote")}
    print_values({**values, "outcome": _outcome(record)})
    if "partitions" in record:
        print_table(
            "Accounting",
            ("partition", "records", "gaps", "unproven gaps"),
            [
                (int(partition), counts["records"], counts["gaps"], counts["unproven_gaps"])
                for partition, counts in record["partitions"].items()
            ],
        )


def _print_overview(records: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        "Pipelines",
        ("pipeline", "plan", "outcome", "records", "table version"),
        [
            (
                record["pipeline"],
                record["plan"],
                _outcome(record),
                record.get("records"),
                record.get("table_version"),
            )
            for record in records
        ],
    )
    for record in records:
        if "error" in record:
            print_error_record(record)


def _outcome(record: Mapping[str, Any]) -> str:
    if "wrote" in record:
        return "landed" if record["wrote"] else "already landed"
    return str(record.get("error") or record["outcome"])

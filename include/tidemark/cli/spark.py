"""`tidemark ingest | quality`: the steps of a pipeline that Spark does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, DryRun, Master, PipelineName, requester
from tidemark.cli.console import (
    err,
    note,
    out,
    print_error_record,
    print_json,
    print_table,
    step,
)
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.plan import PlanRef
from tidemark.ingest.planner import PlanOutcome, PlanResult
from tidemark.ingest.recorder import recorded_plan, refuse_abandoned
from tidemark.pipeline import Pipeline
from tidemark.pipelines import Outcomes, Pipelines, for_each
from tidemark.quality.publication_service import landing_of
from tidemark.run import run
from tidemark.spark.engine import TOKEN_VARIABLE, Server


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Plan and land, in one Spark application.")(ingest)
    app.command(short_help="Check what a plan landed.")(quality)


def ingest(
    pipelines: Annotated[list[str], typer.Argument(help="Names of specs in include/pipelines.")],
    plan_number: Annotated[
        int | None,
        typer.Option(
            "--plan", min=1, help="A recorded plan of the one pipeline; a new one if left out."
        ),
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Plan and land: read exactly the planned offsets with Spark, append them to Delta once.

    Several pipelines are planned and land side by side in one Spark application. One that is
    refused or fails does not stop the others: it is told, and the exit code says so. Call it again
    safely: what has landed is found landed.

    With --plan, execute that plan; if it has landed already nothing is read. With nothing to do,
    no Spark is started.
    """
    names = list(dict.fromkeys(pipelines))
    if plan_number is not None and len(names) > 1:
        raise typer.BadParameter("--plan names a plan of one pipeline; leave the others out")
    app = App.from_environment()
    if dry_run:
        _print_drafts(app, names, plan_number, as_json=as_json)
        return
    chosen = on_engine(app, master, names)
    if plan_number is None:
        asked_by = requester()
        plans, outcomes = chosen.plan(lambda each: each.plan(asked_by))
        refs = [plan.ref for plan in plans]
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


def quality(
    pipeline: PipelineName,
    plan_number: Annotated[
        int | None, typer.Option("--plan", min=1, help="A landed plan; the newest if left out.")
    ] = None,
    master: Master = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Check what a plan landed against the pipeline's quality suite.

    Results go to the Delta table quality/results and to Data Docs. A failed critical check ends
    with exit code 66; the data stays landed.
    """
    app = App.from_environment()
    sequence = _newest_landed(app, pipeline) if plan_number is None else plan_number
    if sequence is None:
        print_json({"outcome": "nothing landed"}) if as_json else out.print("nothing landed yet")
        return
    if dry_run:
        spec = app.pipeline(pipeline).kafka_spec
        landing_of(recorded_plan(app.control, spec.name, sequence))
        suite = spec.suite
        if as_json:
            print_json({"outcome": "draft", "plan": sequence, "suite": suite})
        else:
            checks = f"suite {suite!r}" if suite else "the built-in checks"
            out.print(f"plan {sequence} of {pipeline} would be checked by {checks}", markup=False)
        return
    checked = PlanRef(pipeline=pipeline, sequence=sequence)
    outcomes = on_engine(app, master, [pipeline]).execute("quality", [checked])
    (record,) = outcomes.records
    print_json(record) if as_json else _print_record(record)
    exit_with(outcomes)


def on_engine(app: App, master: str | None, names: Sequence[str]) -> Pipelines:
    """Return the pipelines of a command on its engine; print the name of the engine.

    A server is checked before its first use.

    Raises:
        EngineUnavailable: The server does not answer.
        EngineUnsuitable, SetupError: The server cannot be used.
    """
    if master and "token=" in master:
        raise typer.BadParameter(
            f"other users can read a token on the command line; set {TOKEN_VARIABLE} instead"
        )
    engine = app.engines.select(master)
    step(f"engine: {engine}")
    if isinstance(engine, Server):
        app.check_server(engine, names)
    return Pipelines(
        app=app,
        names=names,
        run=lambda job, refs: run(app, engine, job, refs, say=note),
        progress=step,
    )


def exit_with(outcomes: Outcomes) -> None:
    """End the command with the worst exit code, unless no pipeline has failed."""
    if outcomes.exit_code != ExitCode.OK:
        raise typer.Exit(outcomes.exit_code)


def _print_drafts(
    app: App, names: Sequence[str], plan_number: int | None, *, as_json: bool
) -> None:
    """Print what would be read of each pipeline; end with the worst code, unless all is well."""

    def draft(each: Pipeline) -> PlanResult:
        if plan_number is None:
            return each.planner.preview()
        record = recorded_plan(app.control, each.name, plan_number)
        refuse_abandoned(record)
        outcome = PlanOutcome.LANDED if record.held_now else PlanOutcome.KEPT
        return PlanResult(outcome=outcome, plan=record.plan)

    answers = for_each(app, names, draft)
    if as_json:
        print_json(
            [{"pipeline": name, **_draft_record(answer)} for name, answer in answers.items()]
        )
    for name, answer in () if as_json else answers.items():
        if isinstance(answer, TidemarkError):
            print_error_record({"pipeline": name, **answer.as_record()})
            continue
        out.print(f"{name}: {answer.outcome.value}", markup=False)
        if answer.plan:
            out.print(answer.plan.explain(), markup=False)
    codes = [each.exit_code for each in answers.values() if isinstance(each, TidemarkError)]
    if codes:
        raise typer.Exit(ExitCode.worst(codes))


def _draft_record(answer: PlanResult | TidemarkError) -> dict[str, Any]:
    if isinstance(answer, TidemarkError):
        return answer.as_record()
    plan = answer.plan.as_record() if answer.plan else None
    return {"outcome": answer.outcome.value, "plan": plan}


def _newest_landed(app: App, pipeline: str) -> int | None:
    return app.control.summary(app.pipeline(pipeline).kafka_spec.name).last_landed_sequence


def _print_record(record: Mapping[str, Any]) -> None:
    if "error" in record:
        print_error_record(record)
        return
    if record.get("outcome") == PlanOutcome.NOTHING:
        out.print(record["outcome"], markup=False)
        return
    if "outcome" in record:
        err.print(f"{record['outcome']}; see above", markup=False)
        return
    for key, value in record.items():
        if key != "partitions":
            out.print(f"{key:<14} {value}", markup=False)
    if "partitions" in record:
        print_table(
            "Accounting",
            ("partition", "records", "gaps", "of them unproven"),
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
        return "landed" if record["wrote"] else "found landed"
    return str(record.get("error") or record["outcome"])

"""`tidemark status | plan | verify`: the steps of a pipeline that need no Spark."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidemark.cli.arguments import AsJson, DryRun, Pipeline, requester
from tidemark.cli.console import err, note, out, print_json, print_table
from tidemark.errors import ExitCode
from tidemark.services.planner import Planning
from tidemark.services.status import PipelineStatus
from tidemark.wiring import App


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(status)
    app.command()(plan)
    app.command()(verify)


def status(
    pipelines: Annotated[
        list[str] | None, typer.Argument(help="Pipelines to show; all if none is named.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how far pipelines have come: marks, committed offsets, lag, open plans.

    Reads Kafka's marks and the control table; needs no Spark and no consumer group. A pipeline
    whose next run would be refused is shown with the error it would be refused with.
    """
    app = App.from_environment()
    shown = [app.status(name) for name in pipelines or app.specs]
    if as_json:
        print_json([each.as_record() for each in shown])
        return
    print_table(
        "Pipelines",
        ("pipeline", "topic", "lag", "records landed", "last plan", "open plans", "state"),
        [_summary(each) for each in shown],
    )
    for each in shown:
        if pipelines:
            _print_partitions(each)
        if each.problem:
            err.print(f"{each.pipeline}: {each.problem}", markup=False)


def _summary(each: PipelineStatus) -> tuple[Any, ...]:
    state = "ok" if each.begun else "not begun"
    if each.problem:
        state = type(each.problem).__name__
    opened = ", ".join(map(str, each.open_plans)) or None
    return (
        each.pipeline,
        each.topic,
        each.lag,
        each.records,
        each.last_landed,
        opened,
        state,
    )


def _print_partitions(each: PipelineStatus) -> None:
    print_table(
        f"{each.pipeline}: partitions of {each.topic}",
        ("partition", "low-water mark", "committed offset", "end", "lag"),
        [(p.partition, p.low, p.committed, p.end, p.lag) for p in each.partitions],
    )


def plan(pipeline: Pipeline, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Decide what to read next, the unread part of the log, and record it, without reading it.

    A plan that an earlier run left open is taken over, because it has to land first. Execute the
    plan with `tidemark ingest PIPELINE --plan N`. For offsets of your choice see `backfill`.
    """
    planner = App.from_environment().planner(pipeline)
    answer = planner.preview() if dry_run else planner.plan(requester())
    _print_planning(answer, as_json)


def _print_planning(answer: Planning, as_json: bool) -> None:
    if as_json:
        record = answer.plan.as_record() if answer.plan else None
        print_json({"outcome": answer.outcome.value, "plan": record})
        return
    out.print(answer.outcome.value, markup=False)
    if answer.plan:
        out.print(answer.plan.explain(), markup=False)


def verify(
    pipeline: Pipeline,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    start: Annotated[int | None, typer.Option(min=0, help="Only offsets from here on.")] = None,
    end: Annotated[int | None, typer.Option(min=1, help="Only offsets before this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove the data table: read what landed again from Kafka, and compare every record.

    Another reader than the one that landed it (librdkafka, no group, nothing committed) reads each
    landed offset that Kafka still has. Checksums of key, value, headers and timestamp are compared
    with the table's rows, for what is lost, doubled, foreign or altered. Ends with exit code 65 and
    the first differences if there are any. Needs no Spark.
    """
    done = App.from_environment().verify(pipeline).verify(partition, start, end, say=note)
    if as_json:
        print_json(done.as_record())
        if done.differences:
            raise typer.Exit(ExitCode.REFUSED)
        return
    print_table(
        f"{pipeline}: {done.topic} against the data table",
        ("partition", "offsets", "records", "rows", "compacted since", "deleted since"),
        [(v.partition, v.offsets, v.records, v.rows, v.compacted, v.gone) for v in done.partitions],
    )
    done.check()
    out.print("equal: every visible record is in the table once, as Kafka has it")

"""`tidemark status | plan | verify`: the steps of a pipeline that need no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, DryRun, PipelineName, requester
from tidemark.cli.console import note, out, print_error_record, print_json, print_table
from tidemark.core.errors import ExitCode, TidemarkError, format_duration
from tidemark.ingest.parallel import PLANNING_THREADS, map_in_threads
from tidemark.report.status import PipelineStatus
from tidemark.report.verification import NOT_COMPARED


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Lag in records and in time, retention runway, alarms.")(status)
    app.command(short_help="Decide what to read next, and record it.")(plan)
    app.command(short_help="Prove a data table against Kafka, record by record.")(verify)


def status(
    pipelines: Annotated[
        list[str] | None, typer.Argument(help="Pipelines to show; all if none is named.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Keep what is seen in the Delta table control/status.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 65 if there is any alarm.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how far pipelines have come: lag in records and in time, retention runway, alarms.

    Reads Kafka's watermarks, a record of each partition that lags, and the control table; needs no
    Spark and no consumer group. A pipeline whose next run would be refused is shown with the error
    it would be refused with. What else is an alarm, the `alarms` section of its spec says.
    """
    app = App.from_environment()
    names = [app.spec(name).name for name in pipelines or app.specs]
    answers = map_in_threads(names, lambda name: app.pipeline(name).status(), PLANNING_THREADS)
    if not pipelines:
        names += app.spec_folder.broken
        answers += app.spec_folder.broken.values()
    shown = [each for each in answers if isinstance(each, PipelineStatus)]
    failed = [each for each in answers if isinstance(each, TidemarkError)]
    if record and names:
        try:
            app.record_status(dict(zip(names, answers, strict=True)))
        except TidemarkError as unrecorded:
            answers.append(unrecorded)
            failed.append(unrecorded)
    if as_json:
        print_json([each.as_record() for each in answers])
    else:
        _print_status(shown, in_full=bool(pipelines))
        for error in failed:
            print_error_record(error.as_record())
    if failed:
        raise typer.Exit(ExitCode.worst(error.exit_code for error in failed))
    if check and any(True for each in shown for _ in each.alarms()):
        raise typer.Exit(ExitCode.REFUSED)


def _print_status(shown: Sequence[PipelineStatus], *, in_full: bool) -> None:
    print_table(
        "Pipelines",
        (
            *("pipeline", "topic", "lag", "oldest unread", "runway", "caught up"),
            *("records landed", "last plan", "landed at", "open plans", "state"),
        ),
        [_summary(each) for each in shown],
    )
    for each in shown:
        for line in each.unfinished.explain(each.pipeline, each.checked_at):
            out.print(line, markup=False)
        if in_full:
            _print_partitions(each)
        for alarm in each.alarms():
            print_error_record({"pipeline": each.pipeline, **alarm.as_record()})


def _summary(each: PipelineStatus) -> tuple[Any, ...]:
    return (
        each.pipeline,
        each.topic,
        each.lag,
        _length(each.lag_time),
        _length(each.runway),
        each.caught_up_at or each.forecast.value,
        each.records,
        each.last_landed,
        each.last_landed_at,
        ", ".join(map(str, each.open_plans)) or None,
        each.state,
    )


def _length(time: timedelta | None) -> str | None:
    return None if time is None else format_duration(time)


def _print_partitions(each: PipelineStatus) -> None:
    print_table(
        f"{each.pipeline}: partitions of {each.topic}",
        (
            "partition",
            "low watermark",
            "committed offset",
            "end",
            "lag",
            "oldest unread",
            "runway",
        ),
        [
            (
                *(p.partition, p.low_watermark, p.committed_offset, p.end, p.lag),
                *(_length(p.lag_time), _length(p.runway)),
            )
            for p in each.partitions
        ],
    )


def plan(pipeline: PipelineName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Decide what to read next, the unread part of the log, and record it, without reading it.

    A plan that an earlier run left open is taken over, because it has to land first. Execute the
    plan with `tidemark ingest PIPELINE --plan N`. For offsets of your choice see `backfill`.
    """
    app = App.from_environment()
    planner = app.pipeline(pipeline).planner
    answer = planner.preview() if dry_run else planner.plan(requester())
    adds = app.pipeline(answer.plan.pipeline).size_estimate(answer.plan) if answer.plan else None
    if as_json:
        record = answer.plan.as_record() if answer.plan else None
        told = adds.as_record() if adds else {}
        print_json({"outcome": answer.outcome.value, "plan": record, **told})
        return
    out.print(answer.outcome.value, markup=False)
    if answer.plan and adds:
        out.print(f"{answer.plan.explain()}\n{adds.explain()}", markup=False)


def verify(
    pipeline: PipelineName,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    start: Annotated[int | None, typer.Option(min=0, help="Only offsets from here on.")] = None,
    end: Annotated[int | None, typer.Option(min=1, help="Only offsets before this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove the data table: read what landed again from Kafka, and compare every record.

    Another reader than the one that landed it (librdkafka, no group, nothing committed) reads each
    landed offset that Kafka still has, at the isolation level of the plan that landed it. Checksums
    of key, value, headers and timestamp are compared with the table's rows, to find missing,
    duplicate, unexpected and altered rows. A row is mislabelled if its topic, topic_id,
    plan_sequence or ingested_at differs from that of the plan that landed the offset. Ends with
    exit code 65 and the first differences if there are any. Needs no Spark.
    """
    done = App.from_environment().pipeline(pipeline).verify(partition, start, end, print_line=note)
    if as_json:
        print_json(done.as_record())
        if done.differences:
            raise typer.Exit(ExitCode.REFUSED)
        return
    print_table(
        f"{pipeline}: {done.topic} against the data table",
        ("partition", "offsets", "records", "rows", "compacted since", "deleted since"),
        [
            (v.partition, v.offsets, v.records, v.rows, v.compacted, v.deleted)
            for v in done.partitions
        ],
    )
    if unread := sum(each.headers_unread for each in done.partitions):
        out.print(f"headers of {unread} record(s) not compared: a header name is not UTF-8")
    done.check()
    levels = ", ".join(done.isolation_levels)
    out.print(f"equal: every visible record ({levels}) is in the table once, as Kafka has it")
    out.print(f"not compared: {'; '.join(NOT_COMPARED)}")

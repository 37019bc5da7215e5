"""`tidemark status | plan | verify`: commands that need no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from tidemark.app import App
from tidemark.cli.arguments import (
    AsJson,
    DryRun,
    EndOffset,
    FirstOffset,
    Partition,
    PipelineName,
    PipelineNamesOrAll,
    requester,
)
from tidemark.cli.output import note, out, print_error_record, print_json, print_table
from tidemark.core.errors import ExitCode, TidemarkError, format_duration
from tidemark.ingest.planner import PlanResult
from tidemark.pipelines import for_each
from tidemark.report.status import PartitionStatus, PipelineStatus
from tidemark.report.verification import NOT_COMPARED


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Show lag, retention runway, quarantine and alarms.")(status)
    app.command(short_help="Select the offsets to read next, and record the plan.")(plan)
    app.command(short_help="Compare a data table with Kafka, record by record.")(verify)


def status(
    pipelines: PipelineNamesOrAll = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the status to control/status and its history.")
    ] = False,
    wide: Annotated[
        bool, typer.Option("--wide", help="Show all columns, each row in one line.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with exit code 65 if there is any alarm.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the lag of pipelines, their retention runway, records in quarantine, and alarms.

    Reads Kafka's watermarks, a record of each partition that lags, and the control table; needs no
    Spark and no consumer group. A pipeline whose next run would be refused is shown with the error
    of that run. The `alarms` section of the spec defines further alarms.
    """
    app = App.from_environment()
    names = [app.spec(name).name for name in pipelines or app.specs]
    found = for_each(app, names, lambda each: each.status())
    if not pipelines:
        found |= app.spec_folder.broken
    results = list(found.values())
    if record and found:
        try:
            app.record_status(found)
        except TidemarkError as unrecorded:
            results.append(unrecorded)
    statuses = [each for each in results if isinstance(each, PipelineStatus)]
    failed = [each for each in results if isinstance(each, TidemarkError)]
    if as_json:
        print_json([each.as_record() for each in results])
    else:
        _print_status(statuses, wide=wide, with_partitions=bool(pipelines))
        for error in failed:
            print_error_record(error.as_record())
    if failed:
        raise typer.Exit(ExitCode.worst(error.exit_code for error in failed))
    if exit_code and any(True for each in statuses for _ in each.alarms()):
        raise typer.Exit(ExitCode.REFUSED)


_COLUMNS: Sequence[str] = ("pipeline", "lag", "behind", "runway", "quarantine", "state")
"""The columns of a status without `--wide`. They fit into 80 characters."""
_ALL_COLUMNS: Sequence[str] = (
    *("pipeline", "topic", "lag", "behind", "runway", "caught up", "records landed"),
    *("last plan", "landed at", "check", "open plans", "quarantine", "state"),
)
_PARTITION_COLUMNS: Sequence[str] = (
    "partition",
    "committed offset",
    "end",
    "lag",
    "behind",
    "runway",
)
_ALL_PARTITION_COLUMNS: Sequence[str] = ("partition", "low watermark", *_PARTITION_COLUMNS[1:])


def _print_status(statuses: Sequence[PipelineStatus], *, wide: bool, with_partitions: bool) -> None:
    columns = _ALL_COLUMNS if wide else _COLUMNS
    _print_columns("Pipelines", columns, map(_values, statuses), fold=not wide)
    for status in statuses:
        for line in status.unfinished.explain(status.pipeline, status.checked_at):
            out.print(line)
        if with_partitions:
            title = f"{status.pipeline}: partitions of {status.topic}"
            rows = map(_partition_values, status.partitions)
            columns = _ALL_PARTITION_COLUMNS if wide else _PARTITION_COLUMNS
            _print_columns(title, columns, rows, fold=not wide)
        for alarm in status.alarms():
            print_error_record({"pipeline": status.pipeline, **alarm.as_record()})


def _print_columns(
    title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, fold: bool
) -> None:
    print_table(title, columns, [[row[column] for column in columns] for row in rows], fold=fold)


def _values(status: PipelineStatus) -> Mapping[str, Any]:
    """Return the values of `_ALL_COLUMNS`."""
    return {
        "pipeline": status.pipeline,
        "topic": status.topic,
        "lag": status.lag,
        "behind": _length(status.lag_time),
        "runway": _length(status.runway),
        "caught up": status.caught_up_at or status.forecast.value,
        "records landed": status.records,
        "last plan": status.last_landed,
        "landed at": status.last_landed_at,
        "check": status.unfinished.last_check,
        "open plans": status.open_plans,
        "quarantine": status.unfinished.quarantined,
        "state": status.state,
    }


def _partition_values(partition: PartitionStatus) -> Mapping[str, Any]:
    """Return the values of `_ALL_PARTITION_COLUMNS`."""
    return {
        "partition": partition.partition,
        "low watermark": partition.low_watermark,
        "committed offset": partition.committed_offset,
        "end": partition.end,
        "lag": partition.lag,
        "behind": _length(partition.lag_time),
        "runway": _length(partition.runway),
    }


def _length(time: timedelta | None) -> str | None:
    return None if time is None else format_duration(time)


def plan(pipeline: PipelineName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Select the unread offsets that the next run reads, and record them as a plan.

    An open plan of an earlier run is taken over, because it must land first. Execute the plan with
    `tidemark ingest PIPELINE --plan N`. For offsets of your choice see `backfill`.
    """
    planned = App.from_environment().pipeline(pipeline)
    result = planned.plan(requester(), dry_run=dry_run)
    size = planned.size_estimate(result.plan) if result.plan else None
    if as_json:
        print_json({**plan_record(result), **(size.as_record() if size else {})})
        return
    out.print(result.outcome.value)
    if result.plan and size:
        out.print(f"{result.plan.explain()}\n{size.explain()}")


def plan_record(result: PlanResult) -> dict[str, Any]:
    """Return the outcome of planning, and the plan if any, for `--json`."""
    plan = result.plan.as_record() if result.plan else None
    return {"outcome": result.outcome.value, "plan": plan}


def verify(
    pipeline: PipelineName,
    partition: Partition = None,
    start: FirstOffset = None,
    end: EndOffset = None,
    as_json: AsJson = False,
) -> None:
    """Read the landed offsets from Kafka again, and compare every record with the data table.

    librdkafka, without a group, reads each landed offset that Kafka still has, at the isolation
    level of the plan that landed it. Checksums of key, value, headers and timestamp are compared
    with the table's rows, to find missing, duplicate, unexpected and altered rows. A row is
    mislabelled if its topic, topic_id, plan_sequence or ingested_at differs from that of the plan
    that landed the offset. Ends with exit code 65 and the first differences if there are any. Needs
    no Spark.
    """
    verification = (
        App.from_environment().pipeline(pipeline).verify(partition, start, end, print_line=note)
    )
    if as_json:
        print_json(verification.as_record())
        if verification.differences:
            raise typer.Exit(ExitCode.REFUSED)
        return
    print_table(
        f"{pipeline}: topic {verification.topic} and the data table",
        ("partition", "offsets", "records", "rows", "compacted since", "deleted since"),
        [
            (v.partition, v.offsets, v.records, v.rows, v.compacted, v.deleted)
            for v in verification.partitions
        ],
    )
    if unread := sum(each.headers_unread for each in verification.partitions):
        out.print(f"headers of {unread} record(s) not compared: a header name is not UTF-8")
    verification.check()
    levels = ", ".join(verification.isolation_levels)
    out.print(f"equal: every visible record ({levels}) is in the table once, as Kafka has it")
    out.print(f"not compared: {'; '.join(NOT_COMPARED)}")

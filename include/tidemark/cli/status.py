"""`tidemark status`: lag, runway, quarantine and alarms of pipelines, once or at intervals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tidemark.app.adapters import utc_now
from tidemark.app.app import App
from tidemark.app.pipelines import for_each
from tidemark.app.statuses import record_status
from tidemark.cli.arguments import AsJson, PipelineNamesOrAll
from tidemark.cli.output import (
    make_table,
    out,
    print_error_record,
    print_json,
    print_table,
    print_until_interrupted,
)
from tidemark.console.observer import KAFKA_TIMEOUT_S
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.plain import plain
from tidemark.core.texts import format_duration
from tidemark.ops.report.observed_status import ObservedStatus
from tidemark.ops.report.status import PartitionStatus, PipelineStatus


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Show lag, retention runway, quarantine and alarms.")(status)


def status(
    pipelines: PipelineNamesOrAll = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the status to control/status and its history.")
    ] = False,
    wide: Annotated[
        bool, typer.Option("--wide", help="Show all columns, each row in one line.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with exit code 65 if there is an alarm.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update the output at intervals, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        int | None,
        typer.Option(min=1, help="With --watch: seconds between two updates; by default 5."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the lag of pipelines, their retention runway, records in quarantine, and alarms.

    The command reads Kafka's watermarks, a record of each partition that lags, and the control
    table. It needs no Spark and no consumer group. A pipeline whose next run would be refused is
    shown with the error of that run, also of its decode or its merge. The `alarms` section of the
    spec defines further alarms.

    While Kafka is unavailable, the command shows committed offsets, and the lag is unknown. It then
    ends with the exit code of the error, and --record keeps the last known lag.

    With --watch, a terminal shows each update in place of the previous one. The column `lag per
    min` is the mean change of the lag since the watch began, over the newest 720 updates at most.
    If a pipeline cannot be read, its last values stay, with their age. With --json, each update is
    one line.
    """
    if watch and (record or exit_code or wide):
        raise typer.BadParameter("--watch cannot be combined with --record, --exit-code or --wide")
    if interval and not watch:
        raise typer.BadParameter("--interval needs --watch")
    app = App.from_environment()
    names = _existing(app, pipelines) if pipelines else [*app.specs]
    if watch:
        _watch(app, names, interval or 5, with_partitions=bool(pipelines), as_json=as_json)
        return
    found = for_each(app, names, lambda each: each.report.status())
    if not pipelines:
        found |= app.spec_folder.broken
    results = list(found.values())
    if record and found:
        try:
            record_status(app, found)
        except TidemarkError as unrecorded:
            results.append(unrecorded)
    statuses = [each for each in results if isinstance(each, PipelineStatus)]
    failed = [each for each in results if isinstance(each, TidemarkError)]
    if as_json:
        print_json([each.as_record() for each in results])
    else:
        _print_status(statuses, failed, wide=wide, with_partitions=bool(pipelines))
    failed += [each.kafka_error for each in statuses if each.kafka_error]
    if failed:
        raise typer.Exit(ExitCode.worst(error.exit_code for error in failed))
    if exit_code and any(True for each in statuses for _ in each.alarms()):
        raise typer.Exit(ExitCode.REFUSED)


def _existing(app: App, names: Sequence[str]) -> Sequence[str]:
    """Return the names of tables. Raise the error of the first one that no spec defines."""
    return [app.spec(name).name for name in names]


_COLUMNS: Sequence[str] = ("pipeline", "lag", "behind", "runway", "quarantine", "state")
"""The columns of a status without `--wide`. They fit into 80 characters."""
_ALL_COLUMNS: Sequence[str] = (
    *("pipeline", "topic", "lag", "behind", "runway", "forecast", "records landed"),
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


def _print_status(
    statuses: Sequence[PipelineStatus],
    failed: Sequence[TidemarkError],
    *,
    wide: bool,
    with_partitions: bool,
) -> None:
    columns = _ALL_COLUMNS if wide else _COLUMNS
    _print_columns("Pipelines", columns, map(_values, statuses), fold=not wide)
    for status in statuses:
        for line in status.explain(status.checked_at):
            out.print(str(line))
        if with_partitions:
            title = f"{status.pipeline}: partitions of {status.topic}"
            rows = map(_partition_values, status.partitions)
            columns = _ALL_PARTITION_COLUMNS if wide else _PARTITION_COLUMNS
            _print_columns(title, columns, rows, fold=not wide)
    for alarm, names in _alarms(statuses):
        print_error_record({"pipeline": ", ".join(names), **alarm})
    for error in failed:
        print_error_record(error.as_record())


def _alarms(
    statuses: Iterable[PipelineStatus],
) -> Iterable[tuple[Mapping[str, Any], Sequence[str]]]:
    """Return each different alarm, such as that of an unreachable cluster, with its pipelines."""
    found: list[tuple[Mapping[str, Any], list[str]]] = []
    for status in statuses:
        for alarm in (each.as_record() for each in status.alarms()):
            same = next((names for known, names in found if known == alarm), None)
            if same is None:
                found.append((alarm, [status.pipeline]))
            else:
                same.append(status.pipeline)
    return found


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
        "forecast": status.caught_up_at or status.forecast.value,
        "records landed": status.records,
        "last plan": status.last_landed,
        "landed at": status.last_landed_at,
        "check": status.last_check,
        "open plans": status.open_plans,
        "quarantine": status.unfinished.typed.quarantined,
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


def _length(length: timedelta | None) -> str | None:
    return None if length is None else format_duration(length)


# -- watch -----------------------------------------------------------------------------------------

_WATCH_COLUMNS: Sequence[str] = (
    *("pipeline", "lag", "lag per min"),
    *("behind", "runway", "quarantine", "state"),
)
"""The columns of an update. They fit into 80 characters."""


def _watch(
    app: App, names: Sequence[str], interval_s: int, *, with_partitions: bool, as_json: bool
) -> None:
    """Print the statuses of pipelines until Ctrl-C."""
    # An update must not wait long for Kafka.
    quick = replace(app, kafka_timeout_s=KAFKA_TIMEOUT_S)
    broken = {} if with_partitions else app.spec_folder.broken
    seen: dict[str, ObservedStatus] = {}

    def look() -> RenderableType:
        found = {**for_each(quick, names, lambda each: each.report.status()), **broken}
        for name, each in found.items():
            seen[name] = seen.get(name, ObservedStatus()).updated(each, time.monotonic())
        now = utc_now()
        if as_json:
            return json.dumps(look_record(seen, now), default=str)
        return look_tables(seen, now, with_partitions=with_partitions)

    print_until_interrupted(look, interval_s, in_place=not as_json)


def look_record(seen: Mapping[str, ObservedStatus], now: datetime) -> dict[str, Any]:
    """Return one update of a watch as JSON types.

    Args:
        seen: The newest status of each pipeline.
        now: The time of the update.
    """

    def record(name: str, each: ObservedStatus) -> dict[str, Any]:
        status = each.status.as_record() if each.status else {"pipeline": name}
        error = each.error.as_record() if each.error else None
        age = now - each.status.checked_at if each.status else None
        added = {"lag_per_minute": each.lag_per_minute, "age_seconds": age, "read_error": error}
        return {**status, **added}

    record_of_look = {"time": now, "pipelines": [record(name, each) for name, each in seen.items()]}
    return dict(plain(record_of_look))


def look_tables(
    seen: Mapping[str, ObservedStatus], now: datetime, *, with_partitions: bool
) -> RenderableType:
    """Return one update of a watch as tables, followed by the errors of pipelines.

    Args:
        seen: The newest status of each pipeline.
        now: The time of the update.
        with_partitions: Whether to add a table of the partitions of each pipeline.
    """
    rows = [_watch_values(name, each, now) for name, each in seen.items()]
    title = f"Pipelines at {now:%H:%M:%S} UTC, until Ctrl-C"
    parts = _titled(title, _WATCH_COLUMNS, rows)
    for name, each in seen.items():
        if with_partitions and each.status:
            title = f"{name}: partitions of {each.status.topic}"
            partitions = map(_partition_values, each.status.partitions)
            parts += _titled(title, _PARTITION_COLUMNS, partitions)
        error = each.error or (each.status.run_error if each.status else None)
        if error:
            parts.append(_folded(f"{name}: {type(error).__name__}: {error.rendered('problem')}"))
    return Group(*parts)


def _titled(
    title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> list[RenderableType]:
    cells = [[row[column] for column in columns] for row in rows]
    return [_folded(title, "bold"), make_table(None, columns, cells)]


def _folded(text: str, style: str = "") -> Text:
    """Return a text of several lines if needed: on a terminal, the end of a long line is cut."""
    return Text(text, style, no_wrap=False, overflow="fold")


def _watch_values(name: str, seen: ObservedStatus, now: datetime) -> Mapping[str, Any]:
    """Return the values of `_WATCH_COLUMNS`."""
    status, trend = seen.status, {"lag per min": _trend(seen.lag_per_minute)}
    failure = type(seen.error).__name__ if seen.error else ""
    if status is None:
        empty = dict.fromkeys(_WATCH_COLUMNS)
        return {**empty, "pipeline": name, "state": failure}
    age = f"{failure}, values {format_duration(now - status.checked_at)} old"
    return {**_values(status), **trend, "state": age if failure else status.state}


_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def _trend(per_minute: float | None) -> str | None:
    """Return a change per minute in at most six characters, with an arrow."""
    if per_minute is None:
        return None
    size = abs(per_minute)
    if size < 0.05:
        return "→ 0"
    divisor, unit = next(((limit, unit) for limit, unit in _UNITS if size >= limit), (1, ""))
    scaled = size / divisor
    text = f"{scaled:.1f}" if scaled < 9.95 else f"{scaled:.0f}"
    return f"{'↑' if per_minute > 0 else '↓'} {text}{unit}"

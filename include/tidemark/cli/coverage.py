"""`tidemark coverage`: the state of every offset of a topic, as bars in the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

import typer
from rich.text import Text

from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, EndOffset, FirstOffset, Partition, PipelineName
from tidemark.cli.output import note, out, print_error_record, print_json, print_table
from tidemark.core.errors import ExitCode
from tidemark.core.offsets import Span
from tidemark.core.plain import plain
from tidemark.core.texts import counted
from tidemark.ops.report.coverage import (
    DENSITIES,
    ChosenPartitions,
    OffsetState,
    PartitionCoverage,
    TopicCoverage,
    choose_partitions,
)

_SIGNS: Mapping[OffsetState | None, tuple[str, str]] = {
    OffsetState.LOST: ("X", "bold red"),
    OffsetState.MISSING: ("!", "bold magenta"),
    OffsetState.UNCLEAR: ("?", "magenta"),
    OffsetState.QUARANTINED: ("█", "bold yellow"),
    OffsetState.UNREAD: (".", "yellow"),
    OffsetState.EXPIRED: ("~", "dim"),
    OffsetState.BEFORE_START: ("-", "dim"),
    OffsetState.PLANNED: ("o", "cyan"),
    OffsetState.GAP: (":", "blue"),
    OffsetState.LANDED: ("#", "green"),
    None: (" ", ""),
}
"""The sign and the style of each state. The sign alone suffices without colours."""
_DENSITY = " ▁▂▃▄▅▆▇█"
"""The sign of each level of `quarantine_levels`."""
_LEVELS = [*zip(_DENSITY[1:], (*DENSITIES, 1.0), strict=False)]
_DENSITY_TEXT = " ".join(
    ["quarantined offsets in %:", *(f"{sign} <{share * 100:g}" for sign, share in _LEVELS), "█ 100"]
)
"""The legend of the second line of a bar."""
_MOST_BARS = 40
"""Maximum number of bars of a topic: those of the partitions with the most severe states."""
_MOST_SPANS = 40
"""Maximum number of rows of the table of a single partition."""
_INDENT = 6
_SHORTEST_BAR = 10
_BETWEEN_TICKS = 20
"""Minimum number of cells between two ticks of a ruler."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Show which offsets of the topic have landed, as bars.")(coverage)


def coverage(
    pipeline: PipelineName,
    partition: Partition = None,
    start: FirstOffset = None,
    end: EndOffset = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of every offset of a pipeline's topic, one bar for each partition.

    A single lost or missing offset determines the state of its cell in a bar. Otherwise, a cell has
    the state of most of its offsets. A second line shows the share of quarantined offsets.

    To zoom in, select a partition and offsets. With --partition, the command reads the rows of
    these offsets, finds gaps and missing rows, and lists the spans of each state with their plans.

    \b
    tidemark coverage prices
    tidemark coverage prices --partition 3 --start 1000 --end 2000

    Without --partition, the command reads Kafka's watermarks, the control table, the quarantine and
    the log of the data table. It reads no rows of the data table, and needs no Spark.

    While Kafka is unavailable, the command shows the offsets of plans and of accepted losses, and
    ends with the exit code of the error. The start and the end of the log are then unknown.

    If the data table differs from the control table, for example after a RESTORE, the command
    shows the states of the control table. It then ends with the exit code of the error, such as
    TableBehindLedger.
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    if start is not None and end is not None and start >= end:
        raise typer.BadParameter("--start must be before --end")
    found = App.from_environment().pipeline(pipeline).report.coverage.read(partition, start, end)
    if as_json:
        print_json(plain(found))
    else:
        _print_bars(choose_partitions(found.partitions, _MOST_BARS, start, end))
        windows = [(each, each.window(start, end)) for each in found.partitions]
        _print_totals(windows)
        for each in windows if partition is not None else ():
            _print_spans(*each)
        _print_notes(found, is_zoomed=partition is not None)
    if found.errors:
        raise typer.Exit(ExitCode.worst(error.exit_code for error in found.errors))


def _print_notes(found: TopicCoverage, *, is_zoomed: bool) -> None:
    """Print what the bars do not show, and the errors beside them."""
    if not is_zoomed and any(OffsetState.LANDED in each.states for each in found.partitions):
        note("rows not read: landed offsets may be gaps or missing. --partition reads rows.")
    if not all(each.has_quarantined for each in found.partitions):
        note(
            "quarantined offsets are not shown, because they form too many spans. Select fewer "
            "with --partition, --start and --end."
        )
    if found.kafka_error:
        note("Kafka could not be read, so the start and the end of the log are unknown.")
    if found.table_error:
        note("The states come from the control table, and the data table does not confirm them.")
    for error in found.errors:
        print_error_record(error.as_record())


_Windows: TypeAlias = Sequence[tuple[PartitionCoverage, Span | None]]
"""Partitions, each with the offsets to show; None without offsets."""


def _print_bars(chosen: ChosenPartitions) -> None:
    windows = chosen.partitions
    edges = [f"{window.start:,} to {window.end:,}" if window else "" for _, window in windows]
    width = max(_SHORTEST_BAR, out.width - _INDENT - 1 - max(map(len, edges), default=0))
    for (each, window), edge in zip(windows, edges, strict=True):
        bar = Text(f"{each.partition:>5} ")
        if window is None:
            nothing = "no offsets" if each.end is not None else "no known offsets"
            out.print(bar.append(nothing, "dim"))
            continue
        ruler = _ruler(window, out.width - _INDENT) if len(windows) == 1 else ()
        cells = each.cells(window, out.width - _INDENT if ruler else width)
        for state, run in groupby(cell.state for cell in cells):
            sign, style = _SIGNS[state]
            bar.append(sign * len([*run]), style)
        out.print(bar if ruler else bar.append(f" {edge}", "dim"))
        if levels := each.quarantine_levels(window, len(cells)):
            track = "".join(_DENSITY[level] for level in levels)
            out.print(
                Text(" " * _INDENT).append(track.rstrip(), _SIGNS[OffsetState.QUARANTINED][1])
            )
        for line in ruler:
            out.print(Text(" " * _INDENT + line, "dim"))
    if chosen.others:
        out.print(chosen.others_text)


def _ruler(window: Span, width: int) -> Sequence[str]:
    """Return two lines below a bar: ticks, and their offsets; none for a short bar."""
    width = min(width, window.size)
    last = f"{window.end:,}"
    parts = width // max(_BETWEEN_TICKS, 2 * len(last) + 1)
    if not parts:
        return ()
    ticks, labels = [" "] * width, ""
    for number in range(parts):
        cell = width * number // parts
        ticks[cell] = "|"
        labels = f"{labels:<{cell}}{window.start + window.size * number // parts:,}"
    ticks[-1] = "|"
    return "".join(ticks), f"{labels:<{width - len(last)}}{last}"


def _print_totals(windows: _Windows) -> None:
    """Print the legend, with the number of offsets of each state in all windows."""
    totals: Counter[OffsetState] = Counter()
    for each, window in windows:
        totals.update(each.totals(window) if window else {})
    for state in OffsetState:
        if totals[state]:
            sign, style = _SIGNS[state]
            line = Text(" " * _INDENT).append(sign, style)
            out.print(line.append(f" {state.value:<16} {totals[state]:>20,}"))
    if totals[OffsetState.QUARANTINED]:
        out.print(Text(" " * _INDENT + _DENSITY_TEXT, "dim"))


def _print_spans(each: PartitionCoverage, window: Span | None) -> None:
    if window is None:
        return
    if each.read is None:
        note(
            "rows not read: too many. Landed offsets may be gaps or missing; choose a smaller "
            "window with --start and --end."
        )
    rows = sorted(
        (span.start, span.end, span.size, state.value)
        for state, spans in each.states.items()
        for span in spans.within(window)
    )
    print_table(
        f"Partition {each.partition}",
        ("start", "end", "offsets", "state", "plan"),
        [(*row, _plans(each, Span(row[0], row[1]))) for row in rows[:_MOST_SPANS]],
    )
    if len(rows) > _MOST_SPANS:
        out.print(f"{counted(len(rows) - _MOST_SPANS, 'more span')}; --json lists all")


def _plans(each: PartitionCoverage, span: Span) -> str:
    """Return the plans of a span as text: one, two, or the first and the last of more."""
    plans = [*map(str, each.plans_in(span))]
    return ", ".join(plans) if len(plans) <= 2 else f"{plans[0]} to {plans[-1]}"

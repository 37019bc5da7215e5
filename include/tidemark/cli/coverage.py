"""`tidemark coverage`: which offsets of a topic have landed, as bars in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import typer
from rich.text import Text

from tidemark.app import App
from tidemark.cli.arguments import AsJson, EndOffset, FirstOffset, Partition, PipelineName
from tidemark.cli.output import out, print_json, print_table
from tidemark.core.offsets import Span
from tidemark.report.coverage import OffsetState, PartitionCoverage

_SIGNS: Mapping[OffsetState | None, tuple[str, str]] = {
    OffsetState.LOST: ("X", "bold red"),
    OffsetState.UNREAD: (".", "yellow"),
    OffsetState.PLANNED: ("o", "cyan"),
    OffsetState.BEFORE_START: ("-", "dim"),
    OffsetState.LANDED: ("#", "green"),
    None: (" ", ""),
}
"""The sign and the style of each state. The sign alone suffices without colours."""
_MOST_SPANS = 40
"""Number of spans in the table of a single partition."""


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

    A cell of a bar has the rarest state of its offsets, so a single lost offset is visible. To zoom
    in, select a partition and offsets. With --partition, a table lists the spans of each state.

    \b
    tidemark coverage prices
    tidemark coverage prices --partition 3 --start 1000 --end 2000

    The command reads Kafka's watermarks and the control table. It needs no Spark.
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    partitions = App.from_environment().pipeline(pipeline).coverage()
    if partition is not None:
        partitions = tuple(each for each in partitions if each.partition == partition)
        if not partitions:
            raise typer.BadParameter(f"the topic has no partition {partition}")
    if start is not None and end is not None and start >= end:
        raise typer.BadParameter("--start must be before --end")
    if as_json:
        print_json([each.as_record() for each in partitions])
        return
    _print_bars(partitions, start, end)
    if partition is not None:
        _print_spans(partitions[0], start, end)


def _print_bars(
    partitions: Sequence[PartitionCoverage], start: int | None, end: int | None
) -> None:
    used: set[OffsetState | None] = set()
    for each in partitions:
        window = _window(each, start, end)
        name = f"{each.partition:>5} "
        if window is None:
            out.print(f"{name} no offsets")
            continue
        edges = f" {window.start:,} to {window.end:,}"
        cells = each.cells(window, max(10, out.width - len(name) - 30))
        used.update(cells)
        bar = Text(name)
        for state, run in groupby(cells):
            sign, style = _SIGNS[state]
            bar.append(sign * len(list(run)), style)
        out.print(bar.append(edges, "dim"))
    legend = [f"{_SIGNS[state][0]} {state.value}" for state in OffsetState if state in used]
    out.print("      " + "   ".join(legend))


def _print_spans(each: PartitionCoverage, start: int | None, end: int | None) -> None:
    window = _window(each, start, end)
    if window is None:
        return
    rows = sorted(
        (span.start, span.end, span.size, state.value)
        for state, spans in each.states.items()
        for span in spans.within(window)
    )
    print_table(
        f"Partition {each.partition}", ("start", "end", "offsets", "state"), rows[:_MOST_SPANS]
    )
    if len(rows) > _MOST_SPANS:
        out.print(f"{len(rows) - _MOST_SPANS:,} more span(s); --json lists all")


def _window(each: PartitionCoverage, start: int | None, end: int | None) -> Span | None:
    """Return the offsets of a bar: those of the options, else all of the partition."""
    if (extent := each.extent) is None:
        return None
    first = extent.start if start is None else start
    after = extent.end if end is None else end
    return Span(first, after) if first < after else None

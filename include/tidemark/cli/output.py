"""Output of commands: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidemark.core.logs import TEXT_FORMAT, event_and_fields, is_json_log, json_object
from tidemark.core.plain import plain
from tidemark.core.texts import counted

log = logging.getLogger(__name__)
# Only JSON logs contain progress, also without --verbose.
log.setLevel(logging.INFO)

_PLAIN: Mapping[str, Any] = {
    **dict.fromkeys(("highlight", "markup", "emoji"), False),
    "soft_wrap": True,
}
# A pipe has no width; no name is longer than 160 characters.
out = Console(width=None if sys.stdout.isatty() else 160, **_PLAIN)
err = Console(stderr=True, **_PLAIN)
_out_without_folding = Console(width=10_000, **_PLAIN)
_SHORT = 13
"""Most characters of a short value, such as a number of ten digits or the time `3 d 18 h`."""
_LONG_WORD = 24
"""Most characters of a word in one line, such as the name of an error. A longer word folds."""


_WITHOUT_LINES: Mapping[str, Any] = {"box": None, "padding": (0, 2, 0, 0), "pad_edge": False}
"""The style of a table whose columns are two characters apart."""


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    out.print(json.dumps(value, indent=2, default=str))


def make_table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    fold: bool = True,
    text_of: Callable[[Any], str] | None = None,
) -> Table:
    """Return a table; see `print_table`. `text_of` replaces the usual text of a value."""
    cells = [[(text_of or _cell)(value) for value in row] for row in rows]
    titled: dict[str, Any] = {"title": title, "title_justify": "left", "title_style": "bold"}
    layout = _Layout(with_lines=True)
    if fold:
        found = _layout([columns, *cells], out.width)
        if found is None:
            return _listed(columns, cells, titled)
        layout = found
    table = Table(header_style="bold", **titled, **({} if layout.with_lines else _WITHOUT_LINES))
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int) for row in rows)
        table.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            width=layout.widths[index] if layout.widths else None,
        )
    for row_cells in cells:
        table.add_row(*row_cells)
    return table


def _listed(
    columns: Sequence[str], cells: Sequence[Sequence[str]], titled: Mapping[str, Any]
) -> Table:
    """Return a table with a line for each value: the name of its column, and the value."""
    table = Table(show_header=False, **titled, **_WITHOUT_LINES)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for number, row in enumerate(cells):
        if number:
            table.add_row()
        for column, cell in zip(columns, row, strict=True):
            table.add_row(column, cell)
    return table


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, fold: bool = True
) -> None:
    """Print a table. Numbers are aligned right, with separators of thousands.

    Args:
        title: Text above the table.
        columns: Names of the columns.
        rows: The values of each row.
        fold: Whether a table that is too wide for the output wraps its texts at spaces. If
            necessary, the table has no lines between its columns. If even the words do not fit,
            each value has a line of its own. Without folding, each row is one line of any length.
            No value is shortened.
    """
    table = make_table(title, columns, rows, fold=fold)
    (out if fold else _out_without_folding).print(table)


def print_until_interrupted(
    look: Callable[[], RenderableType], interval_s: float, *, in_place: bool
) -> None:
    """Call a function at intervals and print its results, until Ctrl-C.

    Args:
        look: Returns a text or a table.
        interval_s: Seconds from the start of one call to the start of the next.
        in_place: Whether each text replaces the previous one, on a terminal.
    """
    with suppress(KeyboardInterrupt), _printer(in_place=in_place) as show:
        while True:
            begun = time.monotonic()
            show(look())
            time.sleep(max(0.0, begun + interval_s - time.monotonic()))


@contextmanager
def _printer(*, in_place: bool) -> Iterator[Callable[[RenderableType], None]]:
    if not in_place or not out.is_terminal or out.is_dumb_terminal:
        yield out.print
        return
    live = Live(console=out, auto_refresh=False)

    def show(each: RenderableType) -> None:
        # The first start writes to the terminal, which erases the text of `waiting`.
        live.start()
        live.update(each, refresh=True)

    try:
        yield show
    finally:
        live.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Whether a table has lines between its columns, and the widths of the columns.

    Without widths, each column is as wide as its longest text.
    """

    with_lines: bool
    widths: Sequence[int] = ()


def _layout(rows: Sequence[Sequence[str]], width: int) -> _Layout | None:
    """Return the layout of a table that is at most this wide; None if the table does not fit.

    Texts wrap at spaces, and words that are longer than `_LONG_WORD` fold. A short value stays in
    one line. It wraps only if a table without lines between its columns is still too wide.

    Args:
        rows: The names of the columns, and the texts of each row.
        width: Characters of a line of the terminal.
    """
    columns = list(zip(*rows, strict=True))
    rooms = {True: width - 1 - 3 * len(columns), False: width - 2 * (len(columns) - 1)}
    full = [max(map(cell_len, _lines(column))) for column in columns]
    for with_lines, short in ((True, _SHORT), (False, _SHORT), (False, 0)):
        room = rooms[with_lines]
        if sum(full) <= room:
            return _Layout(with_lines=with_lines, widths=full)
        least = [
            max(min(_LONG_WORD, cell_len(part)) for part in _parts(column, short))
            for column in columns
        ]
        if sum(least) <= room:
            return _Layout(with_lines=with_lines, widths=_widened(least, full, room))
    return None


def _lines(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines() or [""]]


def _parts(column: Sequence[str], short: int) -> Iterator[str]:
    """Yield the parts of a column's texts that stay in one line: words, and short values."""
    name, *values = column
    yield from _words_of(name)
    for line in _lines(values):
        yield from [line] if cell_len(line) <= short else _words_of(line)


def _words_of(line: str) -> list[str]:
    return line.split() or [""]


def _widened(least: Sequence[int], full: Sequence[int], room: int) -> Sequence[int]:
    """Return widths that use the room: columns that need few characters get all of them."""
    widths, left = list(least), room - sum(least)
    by_need = sorted(range(len(full)), key=lambda index: full[index] - least[index])
    for done, index in enumerate(by_need):
        added = min(full[index] - least[index], left // (len(full) - done))
        widths[index] += added
        left -= added
    return widths


def print_status(status: object, *, as_json: bool) -> None:
    """Print the status of a server, as JSON or one line for each value."""
    record = plain(status)
    if as_json:
        print_json(record)
        return
    print_values(record)


def print_values(record: Mapping[str, Any]) -> None:
    """Print one line for each value: its name, and the value in words."""
    for key, value in record.items():
        out.print(f"{key.replace('_', ' '):<14} {_words(value)}")


def print_records(
    records: Sequence[Mapping[str, Any]],
    line: Callable[[Mapping[str, Any]], str | None],
    *,
    as_json: bool,
) -> None:
    """Print the records of pipelines, as JSON or one line or error for each.

    Args:
        records: Results and named errors.
        line: Returns the text of a result; None to print nothing.
        as_json: Print one JSON document.
    """
    if as_json:
        print_json(records)
        return
    for record in records:
        if "error" in record:
            print_error_record(record)
        elif text := line(record):
            out.print(text)


def step(text: str) -> None:
    """Print one line of progress."""
    _progress(text, text, "bold")


def note(text: str) -> None:
    """Print one line of detail under a step."""
    _progress(text, f"  {text}", "dim")


def _progress(text: str, line: str, style: str) -> None:
    if is_json_log():
        log.info("progress message=%s", text)
    else:
        err.print(line, style=style)


def job_line(line: str) -> None:
    """Print a line of a job's output; in a JSON log unchanged if it is a JSON object."""
    if is_json_log() and json_object(line):
        err.print(line)
    else:
        note(line)


class TerminalHandler(logging.Handler):
    """Prints log lines on a terminal, above a progress bar.

    Args:
        verbose: Print the whole line, with its time, level and logger.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        super().__init__()
        self._verbose = verbose
        # Without a formatter, `logging.basicConfig` adds one.
        self.setFormatter(logging.Formatter(TEXT_FORMAT if verbose else None))

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        if self._verbose:
            err.print(self.format(record))
            return
        text = step_text(record) or self.format(record)
        if record.levelno < logging.WARNING:
            note(text)
        else:
            err.print(f"{record.levelname.lower()}: {text}", style="yellow")


def step_text(record: logging.LogRecord) -> str | None:
    """Return a line about a step of a run, such as `prices: ingest of plan 7: 40 records, 1.9 s`.

    None for another event.
    """
    event, step = event_and_fields(record)
    if event != "step ended":
        return None
    plan = f" of plan {step['plan']}" if "plan" in step else ""
    figures = [
        step.get("error"),
        counted(step["records"], "record") if "records" in step else None,
        f"{step['quarantined']:,} quarantined" if step.get("quarantined") else None,
        *(step.get(key) for key in ("outcome", "scope", "status")),
        f"{step['seconds']:.1f} s",
    ]
    return f"{step['pipeline']}: {step['step']}{plan}: {', '.join(filter(None, figures))}"


def print_error_record(record: Mapping[str, Any]) -> None:
    """Print an error: its pipeline if any, the problem, both values, the fix and its section."""
    pipeline = f"{record['pipeline']}: " if "pipeline" in record else ""
    err.print(Text.assemble(pipeline, (record["error"], "bold red"), f": {record['problem']}"))
    for part in ("expected", "actual", "fix", "see"):
        if record[part]:
            err.print(Text.assemble("  ", (f"{part:<9}", "bold"), record[part]))


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _words(value)


def _words(value: Any) -> str:
    """Return a value as text for people. Numbers have no separators: they can be ports and ids."""
    match value:
        case None | "" | [] | ():
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"
        case Mapping():
            return ", ".join(f"{key} {_words(each)}" for key, each in value.items()) or "-"
        case list() | tuple():
            return ", ".join(map(_words, value))
        case _:
            return str(value)

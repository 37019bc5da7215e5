"""Output of commands: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PLAIN: Mapping[str, Any] = {
    **dict.fromkeys(("highlight", "markup", "emoji"), False),
    "soft_wrap": True,
}
# A pipe has no width; no name is longer than 160 characters.
out = Console(width=None if sys.stdout.isatty() else 160, **_PLAIN)
err = Console(stderr=True, **_PLAIN)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    out.print(json.dumps(value, indent=2, default=str))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table. Numbers are aligned right, with separators of thousands."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    out.print(table)


def print_status(record: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the status of a server, as JSON or one line for each value."""
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
    err.print(text, style="bold")


def note(text: str) -> None:
    """Print one line of detail under a step."""
    err.print(f"  {text}", style="dim")


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
        case None | "" | []:
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

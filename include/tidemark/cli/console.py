"""How the command line talks: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidemark.core.errors import TidemarkError

# A pipe has no width: wide enough that a name is never cut there.
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output, for scripts."""
    out.print(json.dumps(value, indent=2, default=str), markup=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table for people; numbers are grouped and aligned right."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    out.print(table)


def step(text: str) -> None:
    """One line of progress."""
    err.print(f"[bold]{escape(text)}[/bold]")


def note(text: str) -> None:
    """One line of detail under a step."""
    err.print(f"[dim]  {escape(text)}[/dim]")


def print_error(error: TidemarkError, *, as_json: bool) -> None:
    """Print an error: the problem, expected and actual values, and the fix."""
    if as_json:
        print_json(error.as_record())
    else:
        print_error_record(error.as_record())


def print_error_record(record: Mapping[str, Any]) -> None:
    """Print an error that is given as plain values, with the name of its pipeline if any."""
    about = f"{escape(record['pipeline'])}: " if "pipeline" in record else ""
    err.print(f"{about}[bold red]{record['error']}[/bold red]: {escape(record['problem'])}")
    for part in ("expected", "actual", "fix"):
        if record[part]:
            err.print(f"  [bold]{part:<9}[/bold]{escape(record[part])}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"
    return escape(f"{value:,}" if isinstance(value, int) else str(value))

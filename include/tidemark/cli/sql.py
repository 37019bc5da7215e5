"""`tidemark sql`: read-only queries over the tables of the home."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len

from tidemark.app.app import App
from tidemark.cli.arguments import AsJson
from tidemark.cli.output import make_table, note, out, print_json, print_table
from tidemark.cli.progress import waiting
from tidemark.core.payload_text import PayloadText
from tidemark.core.plain import payload_value
from tidemark.core.texts import counted, visible

if TYPE_CHECKING:
    from tidemark.sql.session import QueryResult
    from tidemark.sql.tables import Catalog

_SHOWN_ROWS = 1_000
"""Rows that are printed as a table without `--limit`."""
_NARROW = 10
"""Characters of a column in a table of many columns. Longer texts are folded."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Query the tables in SQL.")(sql)


def sql(
    query: Annotated[
        str | None,
        typer.Argument(help="The query. Without it, or as -, the query is on standard input."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Print at most this many rows. Default: {_SHOWN_ROWS:,} as a table, otherwise "
            "all.",
        ),
    ] = None,
    tables: Annotated[
        bool,
        typer.Option("--tables", help="List the names of the tables instead."),
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Query the tables in SQL. The command cannot change them.

    \b
    tidemark sql "SELECT decode(key) AS ticker, count(*) FROM bronze.prices GROUP BY ticker"
    tidemark sql --csv "SELECT * FROM offset_ranges WHERE pipeline = 'prices'" > events.csv

    A table has the name of its folder: bronze/prices is bronze.prices. The view published.prices
    has the published rows of pipeline prices. The schema can be left out if no other table has the
    name. The dialect is DuckDB's, and times are in UTC.

    Bytes are printed as text if they are UTF-8, otherwise in hexadecimal digits. Semicolons
    separate statements, and the command prints the rows of the last one.
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    catalog = App.from_environment().sql_tables()
    if tables:
        _print_tables(catalog, as_json=as_json)
        return
    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json exclude each other")
    if query is None and sys.stdin.isatty():
        raise typer.BadParameter("a query is missing; --help has examples")
    from tidemark.sql.session import sql_session

    text = sys.stdin.read() if query in (None, "-") else str(query)
    with waiting("running the query"), sql_session(catalog) as session:
        result = session.run(text)
        if result is None:
            note("the last statement returns no rows")
            return
        if as_json:
            _write_json(result.columns, islice(result.rows, limit))
        elif as_csv:
            _write_csv(result.columns, islice(result.rows, limit))
        else:
            _print_rows(result, limit or _SHOWN_ROWS)


def _print_tables(catalog: Catalog, *, as_json: bool) -> None:
    entries = [
        {
            "table": str(each.name),
            "short_name": each.name.table if catalog.has_short_name(each) else None,
            "location": each.location,
        }
        for each in catalog.tables
    ]
    if as_json:
        print_json(entries)
    else:
        rows = [tuple(each.values()) for each in entries]
        print_table("Tables", ("table", "short name", "location"), rows)


def _print_rows(result: QueryResult, limit: int) -> None:
    names = [visible(name) for name in result.columns]
    rows = list(islice(result.rows, limit))
    cells = [[_text(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    if sum(min(width, _NARROW) + 3 for width in widths) < out.width:
        out.print(make_table(None, names, rows, text_of=_text))
    else:
        _print_vertically(names, cells)
    if next(result.rows, None) is not None:
        further = counted(result.count() - len(rows), "further row")
        note(f"{further}: --limit N prints more, --csv and --json print all")


def _print_vertically(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print one line for each value, for rows that are wider than the terminal."""
    width = max(map(cell_len, names))
    for number, row in enumerate(rows, start=1):
        out.print(f"row {number:,}", style="bold")
        for name, text in zip(names, row, strict=True):
            # Further lines of a text must not look like names.
            shown = text.replace("\n", f"\n{' ' * (width + 4)}")
            out.print(f"  {name:<{width}}  {shown}")


def _write_json(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a list of objects, one line each."""
    separator = "[\n"
    for row in rows:
        record = dict(zip(columns, map(_plain, row), strict=True))
        sys.stdout.write(f"{separator}  {json.dumps(record)}")
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def _write_csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write CSV. An escape for each invisible character protects terminals alone."""
    shown = visible if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(shown, columns))
    for row in rows:
        writer.writerow("" if value is None else shown(_exact_text(value)) for value in row)


def _text(value: Any) -> str:
    """Return a value as text for a terminal."""
    match value:
        case None:
            return "NULL"
        case bytes():
            shown = PayloadText.of(value, indent=False)
            return f"{shown.text}… ({shown.size:,} bytes)" if shown.truncated else shown.text
        case datetime():
            return value.isoformat(sep=" ")
        case _:
            return visible(_exact_text(value))


def _exact_text(value: Any) -> str:
    plain_value = _plain(value)
    is_text = isinstance(plain_value, str)
    return plain_value if is_text else json.dumps(plain_value, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return payload_value(value, _text_or_hexadecimal)


def _text_or_hexadecimal(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload.hex(" ")

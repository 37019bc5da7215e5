"""The list of tables for `tidemark sql --tables`, from the logs of the tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import PLANNING_THREADS, map_in_threads
from tidemark.core.plain import record_of
from tidemark.lake.delta_dataset import logged_rows
from tidemark.lake.delta_errors import translate_delta_errors
from tidemark.lake.table_io import open_if_exists
from tidemark.sql.tables import Catalog, LakeTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """A table in the list.

    Attributes:
        table: Name in SQL.
        short_name: Name without the schema; None if the schema is necessary.
        columns: Names of the columns; empty before the first write.
        rows: Number of rows; None if it is unknown, as for a published view.
        version: Version of the table; None before the first write.
        location: Path or URI of the table, or of the table that a view reads.
        problem: The named error of a table that cannot be read, else None.
    """

    table: str
    short_name: str | None
    columns: Sequence[str] = ()
    rows: int | None = None
    version: int | None = None
    location: str
    problem: TidemarkError | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the entry as plain values, for `--json`."""
        return record_of(self)


def table_entries(catalog: Catalog) -> list[TableEntry]:
    """Return an entry for each table and published view, by name."""

    def entry_of(table: LakeTable) -> TableEntry:
        return _entry(table, short=catalog.has_short_name(table))

    found = map_in_threads(catalog.tables, entry_of, PLANNING_THREADS)
    return [
        TableEntry(table=str(table.name), short_name=None, location=table.location, problem=entry)
        if isinstance(entry, TidemarkError)
        else entry
        for table, entry in zip(catalog.tables, found, strict=True)
    ]


def _entry(table: LakeTable, *, short: bool) -> TableEntry:
    with translate_delta_errors(table.location, "reading the table"):
        delta = open_if_exists(table.location)
        if delta is None:
            columns, rows, version = [], None, None
        else:
            columns = [field.name for field in delta.schema().fields]
            rows = None if table.published else logged_rows(delta)
            version = delta.version()
    return TableEntry(
        table=str(table.name),
        short_name=table.name.table if short else None,
        columns=columns,
        rows=rows,
        version=version,
        location=table.location,
    )

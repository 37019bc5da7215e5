"""Rows in and out of delta-rs as plain Python values.

Arrow's small Rust binding, which delta-rs brings, does it in a tenth of a second. pyarrow takes
almost a second, because it imports pandas to convert a list, and its datasets abort processes at
exit (docs/adr/0003).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from arro3.core import Array, DataType, Schema, Table
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from tidemark.adapters.delta.failures import named, os_error

TIMESTAMP = DataType.timestamp("us", tz="UTC")
"""Microseconds since 1970 in UTC, the resolution of Delta and Spark."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def opened(uri: str) -> DeltaTable | None:
    """A table; None if it does not exist.

    Raises:
        StorageRefused, StorageUnavailable: Its folder cannot be read.
    """
    try:
        return DeltaTable(uri)
    except TableNotFoundError as missing:
        # delta-rs raises this also without access, and if a file is the parent of a folder.
        if os_error(missing) in {None, errno.ENOENT}:  # fence: no-access-is-no-empty-table
            return None
        raise named(missing, uri, "reading the table") from missing


def to_rows(table: Any) -> list[dict[str, Any]]:
    """Values by column name; `table` is what delta-rs returns."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def from_rows(rows: Sequence[Mapping[str, Any]], schema: Schema) -> Table:
    """A table with the columns of `schema`; a value that a row does not have is null."""
    arrays = [
        _array([row.get(name) for row in rows], schema.field(name).type) for name in schema.names
    ]
    return Table.from_arrays(arrays, schema=schema)


def query(table: DeltaTable, sql: str) -> list[dict[str, Any]]:
    """Rows of a query over `t`, by delta-rs' own engine."""
    return to_rows(read(table, sql))


def read(table: DeltaTable, sql: str) -> Any:
    """The same as an Arrow table.

    Raises:
        UnreadableFile: A file of the table cannot be read.
    """
    try:
        return QueryBuilder().register("t", table).execute(sql).read_all()
    except Exception as failed:  # delta-rs raises nothing narrower here
        from tidemark.adapters.delta.plan_files import refuse_unreadable

        refuse_unreadable(table, failed)
        raise


def moment(micros: int | None) -> datetime | None:
    """Microseconds since 1970 as a moment; None if Python cannot express it."""
    if micros is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def _array(values: Sequence[Any], kind: DataType) -> Array:
    if kind != TIMESTAMP:
        return Array(values, type=kind)
    micros = [
        None if value is None else (value - _EPOCH) // timedelta(microseconds=1) for value in values
    ]
    return Array(micros, type=DataType.int64()).cast(TIMESTAMP)

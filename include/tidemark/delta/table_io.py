"""Opens and queries Delta tables; converts between Arrow tables and Python values.

This module uses Arrow's small Rust binding, which delta-rs brings and which loads in a tenth of a
second. pyarrow takes almost a second, because it imports pandas to convert a list. Its datasets
abort processes at exit: see docs/adr/0003-no-pyarrow-datasets-over-delta-rs.md.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from arro3.core import Array, DataType, Schema, Table
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from tidemark.core.plan import PlanRef
from tidemark.delta.copied_tables import queried
from tidemark.delta.delta_errors import os_error_number, tidemark_error
from tidemark.delta.errors import DeltaLogDamaged
from tidemark.delta.log_copies import open_copied
from tidemark.delta.opened_tables import opened_tables

TIMESTAMP = DataType.timestamp("us", tz="UTC")
"""Microseconds since 1970 in UTC, the resolution of Delta and Spark."""

DATE = DataType.date32()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def open_if_exists(uri: str) -> DeltaTable | None:
    """Open a table; None if it does not exist.

    Raises:
        StorageFailure: Its folder cannot be read.
        DeltaLogDamaged: The folder has data files and no log.
    """
    tables = opened_tables()
    if tables is None:
        return newest_if_exists(uri)
    if uri not in tables:
        tables[uri] = newest_if_exists(uri)
    return tables[uri]


def newest_table(uri: str) -> DeltaTable:
    """Open the newest version of a table.

    Raises:
        TableNotFoundError: It does not exist.
    """
    return open_copied(uri) or DeltaTable(uri)


def table_at(uri: str, version: int) -> DeltaTable:
    """Open a version of a table."""
    newest = open_copied(uri)
    is_newest = newest is not None and newest.version() == version
    return newest if is_newest else DeltaTable(uri, version=version)


def newest_if_exists(uri: str) -> DeltaTable | None:
    """Open the newest version of a table, also in a block of `tables_opened_once`.

    See `open_if_exists` for result and errors.
    """
    copied = open_copied(uri)
    if copied is not None:
        return copied
    try:
        return DeltaTable(uri)
    except TableNotFoundError as missing:
        # delta-rs raises this also without access, and if a file is the parent of a folder.
        number = os_error_number(missing)
        if number not in {None, errno.ENOENT}:  # fence: no-access-is-no-empty-table
            raise tidemark_error(missing, uri, "reading the table") from missing
        file = next(_data_files(uri), None)
        if file is None:  # fence: data-files-without-a-log-are-no-empty-table
            return None
    try:
        # Another process may have created the table meanwhile.
        return DeltaTable(uri)
    except TableNotFoundError as missing:
        reason = f"the folder has data files such as {file} and no Delta log"
        raise DeltaLogDamaged(location=uri, reason=reason) from missing


def _data_files(uri: str) -> Iterator[str]:
    """Iterate over Parquet files below a folder, without hidden files and other tables."""
    for path in _objects_in(uri) if "://" in uri else _files_in(uri):
        is_hidden = any(part.startswith((".", "_")) for part in path.split("/"))
        if path.endswith(".parquet") and not is_hidden:
            yield path


def _files_in(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        if "_delta_log" in folders and place != folder:
            folders.clear()
            continue
        yield from (Path(place, file).relative_to(folder).as_posix() for file in sorted(files))


def _objects_in(uri: str) -> Iterator[str]:
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import FileSelector

    found = DeltaStorageHandler(uri).get_file_info_selector(FileSelector("", recursive=True))
    paths = sorted(info.path for info in found)
    tables = {path.partition("/_delta_log/")[0] for path in paths if "/_delta_log/" in path}
    for path in paths:
        if not any(path.startswith(f"{table}/") for table in tables):
            yield path


def python_rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table as dictionaries."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def arrow_table(rows: Sequence[Mapping[str, Any]], schema: Schema) -> Table:
    """Return an Arrow table with the columns of `schema`; missing values are null."""
    arrays = [
        _array([row.get(name) for row in rows], schema.field(name).type) for name in schema.names
    ]
    return Table.from_arrays(arrays, schema=schema)


def query_rows(table: DeltaTable, sql: str, where: str = "true") -> list[dict[str, Any]]:
    """Run a query as `query_table`, and return the rows as dictionaries."""
    return python_rows(query_table(table, sql, where))


def query_table(table: DeltaTable, sql: str, where: str = "true") -> Any:
    """Run an SQL query on a table, which is named `t`. Returns an Arrow table.

    Args:
        table: The table.
        sql: The query.
        where: An SQL condition. The query may use only rows that meet the condition: a copy of a
            table in an object store may lack the other files.

    Raises:
        UnreadableFile: A file of the table cannot be read.
    """
    with queried(table, where) as rows:
        try:
            return QueryBuilder().register("t", rows).execute(sql).read_all()
        except Exception as failed:  # delta-rs raises a plain Exception here
            from tidemark.delta.unreadable_files import raise_if_unreadable

            raise_if_unreadable(table, failed)
            raise


def any_of_plans(plans: Collection[PlanRef]) -> str:
    """Return the SQL condition of the rows of some plans, at least one, in a shared table."""
    numbers: dict[str, list[str]] = {}
    for plan in plans:
        numbers.setdefault(plan.pipeline, []).append(str(plan.sequence))
    return " OR ".join(
        f"(pipeline = '{pipeline}' AND plan_sequence IN ({', '.join(own)}))"
        for pipeline, own in numbers.items()
    )


def utc_datetime(micros: int | None) -> datetime | None:
    """Return the time of microseconds since 1970; None outside the years 1 to 9999."""
    if micros is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def _array(values: Sequence[Any], kind: DataType) -> Array:
    if kind == DATE:
        days = [None if value is None else (value - _EPOCH.date()).days for value in values]
        return Array(days, type=DataType.int32()).cast(DATE)
    if kind != TIMESTAMP:
        return Array(values, type=kind)
    micros = [
        None if value is None else (value - _EPOCH) // timedelta(microseconds=1) for value in values
    ]
    return Array(micros, type=DataType.int64()).cast(TIMESTAMP)

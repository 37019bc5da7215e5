"""SQL of DuckDB over the tables of a home. No statement can change these tables.

DuckDB runs in this process, with a database in memory. The tables are views over readers of
delta-rs. DuckDB's locked settings forbid files, networks, extensions and variables of Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, TypeVar

import duckdb

from tidemark.core.errors import TidemarkError
from tidemark.core.texts import comma_list, visible
from tidemark.delta.delta_dataset import DeltaDataset
from tidemark.delta.delta_errors import translate_delta_errors
from tidemark.delta.errors import ForeignTable
from tidemark.delta.published_view import published_rows
from tidemark.delta.table_io import open_if_exists
from tidemark.delta.unreadable_files import translate_read_errors
from tidemark.sql.errors import InvalidQuery
from tidemark.sql.tables import Catalog, LakeTable, TableName, quoted

_SETTINGS: Mapping[str, str] = {
    "TimeZone": "'UTC'",
    # DuckDB prints it to standard output.
    "enable_progress_bar": "false",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
"""The last one forbids later changes."""

_MISSING_TABLE = re.compile(r'Catalog Error: Table with name "?(?P<name>.+?)"? does not exist')


_ROWS_AT_ONCE = 2_048

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The rows of a query, which are read while the query runs.

    Attributes:
        columns: Names of the columns; each name occurs once.
        rows: The rows. The iteration raises the errors of `SqlSession.run`.
        count: Runs the query again, and returns the number of its rows.
    """

    columns: Sequence[str]
    rows: Iterator[tuple[Any, ...]]
    count: Callable[[], int]


class SqlSession:
    """A session; see `sql_session`.

    Args:
        connection: A connection to a database in memory.
        catalog: The tables of the home.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> None:
        self._connection = connection
        self._catalog = catalog
        self._is_open: dict[TableName, bool] = {}
        self._unopened: dict[TableName, TidemarkError] = {}
        self._failed_read: tuple[str, Exception] | None = None

    def run(self, sql: str) -> QueryResult | None:
        """Run statements, and return the rows of the last one; None if it returns no rows.

        The session opens a table when a text first contains its name, and keeps that version.

        Raises:
            InvalidQuery: DuckDB cannot run a statement.
            UnreadableFile, StorageFailure, DeltaLogDamaged: A table cannot be read.
        """
        with self._named_errors():
            statements = self._connection.extract_statements(sql)
        if not statements:
            raise InvalidQuery.of_statement("it contains no statement.")
        self._open_tables(sql)
        with self._named_errors():
            for each in statements:
                self._interruptible(partial(self._connection.execute, each))
        last = statements[-1]
        if duckdb.ExpectedResultType.QUERY_RESULT not in last.expected_result_type:
            return None
        columns = _unique([column[0] for column in self._connection.description or ()])
        count = partial(self._count, last.query)
        return QueryResult(columns=columns, rows=self._rows(), count=count)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        with self._named_errors():
            fetch = partial(self._connection.fetchmany, _ROWS_AT_ONCE)
            while some := self._interruptible(fetch):
                yield from some

    def _count(self, query: str) -> int:
        with self._named_errors():
            counted = self._connection.sql(query).aggregate("count(*)")
            ((rows,),) = self._interruptible(counted.fetchall)
        return int(rows)

    def _interruptible(self, run: Callable[[], _T]) -> _T:
        """Run a query in a thread, so that a signal ends it.

        DuckDB handles no signals while the calling thread waits for DuckDB's other threads.
        """
        thread = ThreadPoolExecutor(max_workers=1)
        try:
            return thread.submit(run).result()
        except BaseException:
            # An interrupt before DuckDB has started the query has no effect.
            stopping = Thread(target=thread.shutdown)
            stopping.start()
            while stopping.is_alive():
                self._connection.interrupt()
                stopping.join(0.05)
            raise
        finally:
            thread.shutdown(wait=False)

    def _open_tables(self, sql: str) -> None:
        """Open the tables whose names occur in a text."""
        text = sql.casefold()
        for table in self._catalog.tables:
            if table.name.table.casefold() in text:
                try:
                    self._open(table)
                except TidemarkError as failed:
                    # The text may contain the name in another sense, so the query may succeed.
                    self._unopened[table.name] = failed

    def _open(self, table: LakeTable) -> bool:
        """Create the views of a table, and return whether the table exists."""
        if table.name not in self._is_open:
            self._is_open[table.name] = False
            source = self._published(table) if table.published else self._registered(table)
            if source:
                self._create_views(table, source)
                self._is_open[table.name] = True
        return self._is_open[table.name]

    def _registered(self, table: LakeTable) -> str | None:
        """Register a Delta table, and return its name in SQL; None if the table does not exist."""
        with translate_delta_errors(table.location, "reading the table"):
            delta = open_if_exists(table.location)
            if delta is None:
                return None
            dataset = DeltaDataset(delta, partial(self._keep_failure, table.location))
        self._connection.register(table.name.dotted, dataset)
        return f"FROM {quoted(table.name.dotted)}"

    def _published(self, table: LakeTable) -> str | None:
        """Return the query of a published view; None if one of its tables does not exist."""
        data = self._catalog.data_table_of(table)
        control = self._catalog.control
        if not (self._open(data) and self._open(control)):
            return None
        return published_rows(
            table.published or "",
            rows=quoted(data.name.dotted),
            control=quoted(control.name.dotted),
        )

    def _create_views(self, table: LakeTable, source: str) -> None:
        schema, name = quoted(table.name.schema or "main"), quoted(table.name.table)
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        try:
            self._connection.execute(f"CREATE VIEW {schema}.{name} AS {source}")
        except duckdb.BinderException as failed:
            # A published view compares columns of the bronze table with those of the control table.
            is_bronze = '"landed"' in str(failed)
            kind = "bronze" if is_bronze else "control"
            target = table.location if is_bronze else self._catalog.control.location
            difference = f"it lacks a column of a {kind} table"
            raise ForeignTable(target=target, difference=difference) from None
        if table.name.schema and self._catalog.has_short_name(table):
            self._connection.execute(f"CREATE VIEW main.{name} AS {source}")

    def _keep_failure(self, location: str, failed: Exception) -> None:
        """Keep the exception of a read, of which DuckDB raises only the text."""
        self._failed_read = (location, failed)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as failed:
            if self._failed_read:
                location, cause = self._failed_read
                with translate_read_errors(location, "reading the table"):
                    raise cause from None
            raise self._named_error(failed) from None

    def _named_error(self, failed: duckdb.Error) -> TidemarkError:
        text = str(failed).strip()
        missing = _MISSING_TABLE.match(text)
        if missing is None:
            return InvalidQuery.of_statement(visible(text))
        name = missing["name"]
        candidates = [each.name for each in self._catalog.named(name)]
        for each in candidates:
            if each in self._unopened:
                return self._unopened[each]
        similar = [each for each in candidates if self._is_open.get(each)]
        if similar:
            reason = "the name needs its schema"
        elif candidates:
            reason = f"{comma_list(candidates)} has no rows yet"
        else:
            reason = "no table of this home has the name"
            similar = self._catalog.similar(name)
        return InvalidQuery.of_table(name, reason, tuple(map(str, similar)))


@contextmanager
def sql_session(catalog: Catalog) -> Iterator[SqlSession]:
    """Provide a session over the tables of a home.

    Queries that need more memory than DuckDB's limit, 80 % of the machine's memory, use a
    temporary folder.
    """
    with (
        TemporaryDirectory(prefix="tidemark-sql-") as folder,
        duckdb.connect(config={"temp_directory": folder}) as connection,
    ):
        for name, value in _SETTINGS.items():
            connection.execute(f"SET {name} = {value}")
        yield SqlSession(connection, catalog)


def _unique(names: Sequence[str]) -> list[str]:
    """Return names of columns with a number after each repeated one."""
    found: list[str] = []
    for name in names:
        number, free = 0, name
        while free in found:
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found

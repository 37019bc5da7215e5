"""Read the fields of decoded records that the schema does not name, without Spark.

The column `_rest` keeps these fields as the text of a JSON object. delta-rs streams the texts, and
DuckDB counts their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.schema import StructType

from tidemark.core.ledger import Ledger
from tidemark.core.table_state import TableSize
from tidemark.delta.copied_tables import with_rows
from tidemark.delta.table_io import open_if_exists, query_rows
from tidemark.delta.unreadable_files import translate_read_errors
from tidemark.spec.decode import REST
from tidemark.spec.flattening import VALUE

MAX_NAMES = 20
"""Maximum number of names in a result."""
_MAX_LENGTH = 100
_REPORTED_RECORDS, _REPORTED_BYTES = 1_000_000, 64 * 2**20
"""Maximum records and bytes that a report reads. Each check is followed by a report."""
_ROWS_AT_ONCE = 256
"""Rows of a batch. A text can be as large as a record; delta-rs keeps several batches in memory."""

_COUNTS = f"""
    WITH named AS (
        SELECT CASE WHEN json_valid(rest) THEN json_keys(rest) ELSE [] END AS names FROM texts
    ), shortened AS (
        SELECT list_distinct(
            list_transform(names, lambda name: left(name, {_MAX_LENGTH}))
        ) AS names FROM named
    )
    SELECT name, count(*) AS records
    FROM (SELECT unnest(list_append(names, NULL)) AS name FROM shortened)
    GROUP BY name ORDER BY name IS NOT NULL, records DESC, name LIMIT {MAX_NAMES + 2}
"""
"""The name NULL counts the records. DuckDB may reject a text with a number that Java accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnnamedFields:
    """The fields that the schema does not name, in some plans of a typed table.

    Attributes:
        first_plan: Number of the first of these plans.
        decoded: Number of decoded records in these plans.
        records: Number of records with such a field.
        names: The most frequent names, each with its number of records; at most `MAX_NAMES`.
        has_more: Whether there are more names.
    """

    first_plan: int
    decoded: int
    records: int
    names: Mapping[str, int] = field(default_factory=dict)
    has_more: bool = False

    def without_names(self) -> UnnamedFields:
        """Return only the numbers. A name can be a value, such as a customer number as a key."""
        return replace(self, names={}, has_more=False)

    def as_record(self) -> dict[str, Any]:
        """Return the numbers as plain values, for `--json`."""
        return {
            "first_plan": self.first_plan,
            "decoded": self.decoded,
            "records": self.records,
            "names": dict(self.names),
            "more": self.has_more,
        }


def newest_plans(ledger: Ledger, size: TableSize) -> tuple[int, int] | None:
    """Return the first and the last of the newest plans for a report; None without rows.

    Args:
        ledger: The complete ledger of the bronze pipeline.
        size: Size of the rows of the typed table.
    """
    left = size.records_within(_REPORTED_RECORDS, _REPORTED_BYTES)
    landed = {number: each.held_now for number, each in ledger.plans.items() if each.held_now}
    numbers = sorted(landed, reverse=True)
    first = None
    for number in numbers:
        left -= landed[number].records
        if first is not None and left < 0:
            break
        first = number
    return None if first is None else (first, numbers[0])


def read_unnamed_fields(typed: str, first: int, last: int) -> UnnamedFields | None:
    """Return the unnamed fields of some plans; None if the table does not keep such fields.

    Args:
        typed: URI of the typed table.
        first: Number of the first bronze plan.
        last: Number of the last bronze plan.

    Raises:
        UnreadableFile, StorageFailure, DeltaLogDamaged: The table cannot be read.
    """
    with translate_read_errors(typed, "reading the unnamed fields"):
        table = open_if_exists(typed)
        rest = None if table is None else _rest_column(table)
        if table is None or rest is None:
            return None
        return _count_names(table, rest, first, last)


def _rest_column(table: DeltaTable) -> str | None:
    """Return the SQL of the column with unnamed fields; None without one."""
    columns = {each.name: each.type for each in table.schema().fields}
    if REST in columns:
        return f'"{REST}"'
    value = columns.get(VALUE)
    has_rest = isinstance(value, StructType) and REST in {each.name for each in value.fields}
    return f"{VALUE}['{REST}']" if has_rest else None


def _count_names(table: DeltaTable, rest: str, first: int, last: int) -> UnnamedFields:
    import duckdb
    import pyarrow as pa

    plans = f"plan_sequence BETWEEN {first} AND {last}"
    (counted,) = query_rows(table, f"SELECT count(*) AS decoded FROM t WHERE {plans}")
    session = QueryBuilder().register("t", with_rows(table))
    session.execute(f"SET datafusion.execution.batch_size = {_ROWS_AT_ONCE}").read_all()
    texts = session.execute(f"SELECT {rest} AS rest FROM t WHERE {plans} AND {rest} IS NOT NULL")
    with duckdb.connect() as connection:
        connection.register("texts", pa.RecordBatchReader.from_stream(texts))
        total, *names = connection.execute(_COUNTS).fetchall() or [(None, 0)]
    return UnnamedFields(
        first_plan=first,
        decoded=counted["decoded"],
        records=total[1],
        names=dict(names[:MAX_NAMES]),
        has_more=len(names) > MAX_NAMES,
    )

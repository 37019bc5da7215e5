"""Counting a bronze table without Spark."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.lake.table_io import open_if_exists, query_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """A bronze table in numbers.

    Attributes:
        rows: Rows.
        records: Distinct (topic id, partition, offset): rows beyond it are duplicates (S5).
    """

    rows: int
    records: int


def count_bronze(uri: str) -> TableCount:
    """Count a bronze table; a table that does not exist has no rows."""
    table = open_if_exists(uri)
    if table is None:
        return TableCount(rows=0, records=0)
    (counted,) = query_rows(
        table,
        """
        SELECT (SELECT count(*) FROM t) AS rows,
               (SELECT count(*) FROM (SELECT DISTINCT topic_id, partition, "offset" FROM t))
                 AS records
        """,
    )
    return TableCount(**counted)

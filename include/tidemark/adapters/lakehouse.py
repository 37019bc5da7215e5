"""Reading tables back without Spark: what a bronze table holds, how the quality checks ended."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError


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
    try:
        table = DeltaTable(uri)
    except TableNotFoundError:
        return TableCount(rows=0, records=0)
    identity = pa.table(table.scan(columns=["topic_id", "partition", "offset"]))
    keys = identity.group_by(identity.column_names, use_threads=False).aggregate([])
    return TableCount(rows=identity.num_rows, records=keys.num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceVerdict:
    """How the newest quality check of one plan ended.

    Attributes:
        pipeline: Pipeline name.
        plan_sequence: Plan number.
        verdict: `passed`, `warned` or `failed`.
        data_docs: Start page of its report.
    """

    pipeline: str
    plan_sequence: int
    verdict: str
    data_docs: str


def newest_verdicts(uri: str) -> list[SliceVerdict]:
    """The newest attempt of every plan in the quality results table, by pipeline and plan."""
    try:
        table = DeltaTable(uri)
    except TableNotFoundError:
        return []
    columns = ["run_at", "pipeline", "plan_sequence", "verdict", "data_docs"]
    rows = pa.table(table.scan(columns=columns)).to_pylist()
    newest = {
        (row["pipeline"], row["plan_sequence"]): row
        for row in sorted(rows, key=lambda row: row["run_at"])
    }
    return [
        SliceVerdict(**{name: newest[key][name] for name in columns[1:]}) for key in sorted(newest)
    ]

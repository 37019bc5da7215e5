"""The results table: one row for every check result of every attempt."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from tidemark.core.quality import CheckResult, Example, QualityReport, Severity, SliceRef
from tidemark.core.reports import CheckedPlan
from tidemark.core.upkeep import KEEP_LOG
from tidemark.errors import EngineFailed

_EXAMPLE = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("plan_sequence", pa.int64(), nullable=False),
        pa.field("table_version", pa.int64(), nullable=False),
        pa.field("run_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("check", pa.string(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("passed", pa.bool_(), nullable=False),
        pa.field("observed", pa.string()),
        pa.field("expectation", pa.string(), nullable=False),
        pa.field("unexpected_count", pa.int64()),
        pa.field("unexpected_percent", pa.float64()),
        pa.field("value", pa.float64()),
        pa.field("kind", pa.string()),
        pa.field("data_docs", pa.string(), nullable=False),
        pa.field("examples", pa.list_(_EXAMPLE)),
    ]
)
"""`run_at` names the attempt; the newest one of a plan counts."""


def append_report(table: str, report: QualityReport) -> None:
    """Append a report in one commit, so that an attempt is there whole or not at all.

    Blind appends never conflict with each other: delta-rs takes the next free version. The making
    of the table, and of a column, does, and is tried again.

    Raises:
        EngineFailed: The report is there or not; nothing else has changed.
    """
    for left in reversed(range(_TRIES)):
        try:
            _append(table, report)
        except CommitFailedError as first:
            if not left:
                operation = f"keeping the results of plan {report.plan_sequence}"
                raise EngineFailed(operation=operation, reason=str(first)[:500]) from first
        else:
            return


_TRIES = 5


def _append(table: str, report: QualityReport) -> None:
    DeltaTable.create(
        table,
        schema=SCHEMA,
        mode="ignore",
        partition_by=["pipeline"],
        configuration={**KEEP_LOG, "delta.appendOnly": "true"},
    )
    # A table that was made before a column came gets it now.
    write_deltalake(table, _rows(report), mode="append", schema_mode="merge")


def earlier_figures(table: str, ref: SliceRef, plans: int) -> dict[str, list[float]]:
    """Figures of earlier plans of the same kind, in the attempts that count, newest plan first.

    Args:
        table: The results table.
        ref: The slice whose predecessors are meant.
        plans: How many plans are looked back at.

    Returns:
        By check. Empty if nothing was checked before, or by a version that kept no figures.
    """
    try:
        results = DeltaTable(table)
    except TableNotFoundError:
        return {}
    if "value" not in {field.name for field in results.schema().fields}:
        return {}
    found = (
        QueryBuilder()
        .register("t", results)
        .execute(
            _EARLIER.format(
                pipeline=ref.pipeline, kind=ref.kind, before=ref.plan_sequence, plans=plans
            )
        )
    )
    figures: dict[str, list[float]] = {}
    for row in pa.table(found.read_all()).to_pylist():
        figures.setdefault(row["check"], []).append(row["value"])
    return figures


_EARLIER = """
    SELECT "check", value
    FROM (
        SELECT "check", value, plan_sequence,
               rank() OVER (PARTITION BY plan_sequence ORDER BY run_at DESC) AS attempt,
               dense_rank() OVER (ORDER BY plan_sequence DESC) AS back
        FROM t
        WHERE pipeline = '{pipeline}' AND kind = '{kind}' AND plan_sequence < {before}
    )
    WHERE attempt = 1 AND back <= {plans} AND value IS NOT NULL
    ORDER BY plan_sequence DESC
"""


class DeltaQualityHistory:
    """What checks have found, from the results table.

    Args:
        table: The results table.
    """

    def __init__(self, table: str) -> None:
        self._table = table

    def checked(self, pipeline: str, plans: Collection[int]) -> list[CheckedPlan]:
        """As `QualityHistory.checked`."""
        try:
            results = DeltaTable(self._table)
        except TableNotFoundError:
            return []
        if not plans:
            return []
        wanted = ", ".join(map(str, sorted(plans)))
        found = (
            QueryBuilder()
            .register("t", results)
            .execute(_CHECKED.format(pipeline=pipeline, plans=wanted))
        )
        by_plan: dict[int, list[dict[str, Any]]] = {}
        for row in pa.table(found.read_all()).to_pylist():
            by_plan.setdefault(row["plan_sequence"], []).append(row)
        return [
            CheckedPlan(
                sequence=sequence,
                results=[_result(row) for row in rows],
            )
            for sequence, rows in by_plan.items()
        ]


_CHECKED = """
    SELECT * FROM (
        SELECT *, rank() OVER (PARTITION BY plan_sequence ORDER BY run_at DESC) AS attempt
        FROM t WHERE pipeline = '{pipeline}' AND plan_sequence IN ({plans})
    )
    WHERE attempt = 1 ORDER BY plan_sequence, position
"""


def _result(row: dict[str, Any]) -> CheckResult:
    names = ("check", "column", "observed", "expectation", "passed")
    return CheckResult(
        **{name: row[name] for name in names},
        severity=Severity(row["severity"]),
        unexpected_count=row["unexpected_count"],
        unexpected_percent=row["unexpected_percent"],
        # A table from before they were kept.
        value=row.get("value"),
        examples=tuple(Example(**each) for each in row.get("examples") or ()),
    )


def _rows(report: QualityReport) -> pa.Table:
    rows = []
    for position, result in enumerate(report.results):
        record = result.as_record()
        observed = record.pop("observed")
        rows.append(
            {
                "pipeline": report.pipeline,
                "plan_sequence": report.plan_sequence,
                "table_version": report.table_version,
                "kind": str(report.kind),
                "run_at": report.run_at,
                "verdict": str(report.verdict),
                "position": position,
                "observed": None if observed is None else str(observed),
                "data_docs": report.data_docs,
                **record,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)

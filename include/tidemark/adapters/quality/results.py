"""The results table: one row for every check result of every attempt."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tidemark.core.quality import QualityReport

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
        pa.field("data_docs", pa.string(), nullable=False),
    ]
)
"""`run_at` names the attempt; the newest one of a plan counts."""


def append_report(table: str, report: QualityReport) -> None:
    """Append a report in one commit, so that an attempt is there whole or not at all.

    Blind appends never conflict with each other: delta-rs takes the next free version.
    """
    DeltaTable.create(
        table,
        schema=SCHEMA,
        mode="ignore",
        partition_by=["pipeline"],
        configuration={"delta.appendOnly": "true"},
    )
    write_deltalake(table, _rows(report), mode="append")


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
                "run_at": report.run_at,
                "verdict": str(report.verdict),
                "position": position,
                "observed": None if observed is None else str(observed),
                "data_docs": report.data_docs,
                **record,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)

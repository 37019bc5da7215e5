"""Functions for processes of quality tests. It imports no heavy module."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from tidemark.quality.check_results import (
    BatchRef,
    CheckResult,
    QualityReport,
    RecordedRange,
    Severity,
)
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.checker import BatchChecker
from tidemark.quality.data_docs import DataDocs

BRONZE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_out_of_range_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("topic_id", pa.string()),
        ("plan_sequence", pa.int64()),
        ("ingested_at", pa.timestamp("us", tz="UTC")),
    ]
)

REPORT = QualityReport(
    pipeline="",
    plan_sequence=1,
    table_version=0,
    run_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
    results=(
        CheckResult(
            check="range_count_mismatches",
            column=None,
            severity=Severity.CRITICAL,
            passed=True,
            observed=0,
            expectation="all counts match",
        ),
    ),
    data_docs=None,
)


def report_often(folder: Path, pipeline: str, times: int) -> None:
    """Append reports of one pipeline to the results table."""
    for plan in range(1, times + 1):
        report = replace(REPORT, pipeline=pipeline, plan_sequence=plan)
        DeltaCheckResults(str(folder / "results")).append(report)


def check_without_a_suite(folder: Path, records: int) -> QualityReport:
    """Check plan 1 of the table `bronze`, whose range should have `records` records."""

    def no_session() -> NoReturn:
        raise AssertionError("the built-in checks started Spark")

    quality = BatchChecker(
        spark=no_session,
        suites=folder,
        docs=DataDocs(folder / "data_docs"),
        results=DeltaCheckResults(str(folder / "results")),
    )
    ref = BatchRef(
        pipeline="prices", table=str(folder / "bronze"), table_version=0, plan_sequence=1
    )
    expected = RecordedRange(topic_id="T1", partition=0, start=0, end=10, records=records)
    return quality.check(ref, [expected], None, REPORT.run_at)

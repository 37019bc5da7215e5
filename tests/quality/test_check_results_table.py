"""The results table, without Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.support.quality_reports import REPORT
from tidemark.core.plan import PlanRef
from tidemark.quality.check_results import Example, QualityReport
from tidemark.quality.check_results_table import SCHEMA, DeltaCheckResults

_LATER = ("value", "kind", "examples")
"""Columns that older tables lack."""


def report_of(plan: int, records: float | None, attempt: int = 0) -> QualityReport:
    """Return a report of one figure."""
    result = replace(REPORT.results[0], check="records", value=records)
    return replace(
        REPORT,
        pipeline="prices",
        plan_sequence=plan,
        run_at=REPORT.run_at + timedelta(hours=attempt),
        results=(result,),
    )


def test_the_newest_checks_of_plans_of_several_pipelines_are_read_at_once(tmp_path: Path) -> None:
    """Plans of different pipelines have the same numbers."""
    results = DeltaCheckResults(str(tmp_path / "results"))
    for plan in (1, 2):
        results.append(report_of(plan, plan))
        results.append(replace(report_of(plan, 10 * plan), pipeline="orders"))
    results.append(report_of(1, 5, attempt=1))
    refs = [("prices", 1), ("orders", 2), ("orders", 3)]
    checked = results.checked([PlanRef(pipeline=name, sequence=n) for name, n in refs])
    figures = {str(plan): each.results[0].value for plan, each in checked.items()}
    assert figures == {"prices=1": 5, "orders=2": 20}


def test_concurrent_reports_are_all_stored(tmp_path: Path) -> None:
    """The table does not exist yet, and one of the writers creates it."""
    table = str(tmp_path / "results")
    with ThreadPoolExecutor(6) as threads:
        reports = [report_of(plan, 1) for plan in range(1, 7)]
        list(threads.map(DeltaCheckResults(table).append, reports))
    refs = [PlanRef(pipeline="prices", sequence=plan) for plan in range(1, 7)]
    checked = DeltaCheckResults(table).checked(refs)
    assert {each.sequence for each in checked} == set(range(1, 7))


def test_an_older_table_gets_the_missing_columns(tmp_path: Path) -> None:
    """Its rows stay, without figures."""
    table = str(tmp_path / "results")
    old = pa.schema([field for field in SCHEMA if field.name not in _LATER])
    row = {
        "pipeline": "prices",
        "plan_sequence": 1,
        "table_version": 0,
        "outcome": "passed",
        "run_at": REPORT.run_at,
        "position": 0,
        "check": "records",
        "severity": "info",
        "passed": True,
        "observed": "10",
        "expectation": "",
    }
    write_deltalake(
        table,
        pa.Table.from_pylist([row], old),
        partition_by=["pipeline"],
        configuration={"delta.appendOnly": "true"},
    )
    examples = (Example(3, 2**40, "-1"), Example(0, 0, None))
    report = report_of(2, 20)
    report = replace(report, results=(replace(report.results[0], examples=examples),))
    DeltaCheckResults(table).append(report)
    plans = [PlanRef(pipeline="prices", sequence=sequence) for sequence in (1, 2)]
    first, second = DeltaCheckResults(table).checked(plans).values()
    assert (first.results[0].examples, second.results[0].examples) == ((), examples)
    stored = pa.table(DeltaTable(table).scan()).to_pylist()
    assert sorted((row["plan_sequence"], row["observed"], row["value"]) for row in stored) == [
        (1, "10", None),
        (2, "0", 20.0),
    ]

"""The results table: one row for every check result of every attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa

from tidemark.core.plain import record_of
from tidemark.core.plan import PlanRef
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.shared_tables import append_shared
from tidemark.delta.table_io import any_of_plans, open_if_exists, query_rows
from tidemark.quality.check_results import (
    CheckAttempt,
    CheckedPlan,
    CheckOutcome,
    CheckResult,
    Example,
    QualityReport,
    Severity,
)

_EXAMPLE = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("plan_sequence", pa.int64(), nullable=False),
        pa.field("table_version", pa.int64(), nullable=False),
        pa.field("run_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
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
        pa.field("examples", pa.list_(_EXAMPLE)),
    ]
)
"""The results table's columns; docs/reference/quality.md explains each. `run_at` identifies the
attempt."""


@translates_delta_errors
class DeltaCheckResults:
    """The results table.

    Args:
        uri: The table, which pipelines share.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def append(self, report: QualityReport) -> None:
        """Append a report in one commit."""
        append_shared(
            self._uri,
            _rows(report),
            SCHEMA,
            partition_by=["pipeline"],
        )

    def checked(self, plans: Collection[PlanRef]) -> Mapping[PlanRef, CheckedPlan]:
        """Return the newest check of each given plan, by pipeline and number; omit unchecked ones.

        All plans share one read of the table.
        """
        results = open_if_exists(self._uri) if plans else None
        if results is None:
            return {}
        by_plan: dict[PlanRef, list[dict[str, Any]]] = {}
        for row in query_rows(results, _CHECKED.format(plans=any_of_plans(plans))):
            plan = PlanRef(pipeline=row["pipeline"], sequence=row["plan_sequence"])
            by_plan.setdefault(plan, []).append(row)
        return {
            plan: CheckedPlan(sequence=plan.sequence, results=[_result(row) for row in rows])
            for plan, rows in by_plan.items()
        }

    def attempts(self, plan: PlanRef) -> Sequence[CheckAttempt]:
        """Return all attempts to check a plan, newest first."""
        results = open_if_exists(self._uri)
        if results is None:
            return ()
        rows = query_rows(results, _ATTEMPTS.format(plan=any_of_plans([plan])))
        return [CheckAttempt(**{**row, "outcome": CheckOutcome(row["outcome"])}) for row in rows]


_CHECKED = """
    SELECT * FROM (
        SELECT *, rank() OVER (PARTITION BY pipeline, plan_sequence ORDER BY run_at DESC) AS attempt
        FROM t WHERE {plans}
    )
    WHERE attempt = 1 ORDER BY pipeline, plan_sequence, position
"""

_ATTEMPTS = """
    SELECT run_at, outcome, table_version,
           count(*) AS rules, sum(CASE WHEN passed THEN 0 ELSE 1 END) AS failed
    FROM t WHERE {plan} GROUP BY run_at, outcome, table_version ORDER BY run_at DESC
"""


def _result(row: dict[str, Any]) -> CheckResult:
    # Older tables lack some columns.
    values: dict[str, Any] = {each.name: row.get(each.name) for each in fields(CheckResult)}
    values["severity"] = Severity(row["severity"])
    values["examples"] = tuple(Example(**each) for each in row.get("examples") or ())
    return CheckResult(**values)


def _rows(report: QualityReport) -> pa.Table:
    shared = record_of(report, without=["results", "run_at", "data_docs"], outcome=report.outcome)
    rows = [
        {
            **shared,
            **record_of(result),
            "run_at": report.run_at,
            "position": position,
            "observed": None if result.observed is None else str(result.observed),
        }
        for position, result in enumerate(report.results)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)

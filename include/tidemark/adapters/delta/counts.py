"""Reading tables back without Spark: what a bronze table holds, how the quality checks ended."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tidemark.adapters.delta.rows import opened, query, to_rows
from tidemark.core.plan import PlanRef


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
    table = opened(uri)
    if table is None:
        return TableCount(rows=0, records=0)
    (counted,) = query(
        table,
        """
        SELECT (SELECT count(*) FROM t) AS rows,
               (SELECT count(*) FROM (SELECT DISTINCT topic_id, partition, "offset" FROM t))
                 AS records
        """,
    )
    return TableCount(**counted)


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


def newest_verdicts(uri: str, plans: Collection[PlanRef] | None = None) -> list[SliceVerdict]:
    """The newest attempt of every plan in the quality results table, by pipeline and plan.

    Args:
        uri: The results table.
        plans: Only of these; of all if left out.
    """
    if plans is not None and not plans:
        return []
    table = opened(uri)
    if table is None:
        return []
    columns = ["run_at", "pipeline", "plan_sequence", "verdict", "data_docs"]
    wanted = " OR ".join(
        f"(pipeline = '{plan.pipeline}' AND plan_sequence = {plan.sequence})"
        for plan in plans or ()
    )
    rows = to_rows(table.scan(columns=columns, predicate=wanted or None).read_all())
    newest = {
        (row["pipeline"], row["plan_sequence"]): row
        for row in sorted(rows, key=lambda row: row["run_at"])
    }
    return [
        SliceVerdict(**{name: newest[key][name] for name in columns[1:]}) for key in sorted(newest)
    ]

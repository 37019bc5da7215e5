"""The publication table: decisions of checks and operators about every landed range."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from arro3.core import DataType, Field, Schema

from tidemark.core.accounting import Landing
from tidemark.core.offsets import Span, SpanSet, union_by_partition
from tidemark.core.plan import Plan
from tidemark.lake.delta_errors import translate_delta_errors, translates_delta_errors
from tidemark.lake.shared_tables import append_shared
from tidemark.lake.table_io import TIMESTAMP, arrow_table, open_if_exists, query_rows
from tidemark.quality.publication import (
    PublicationDecision,
    PublicationStatus,
    effective_decisions,
)

COLUMNS = Schema(
    [
        Field("pipeline", DataType.utf8(), nullable=False),
        Field("plan_sequence", DataType.int64(), nullable=False),
        Field("status", DataType.utf8(), nullable=False),
        Field("decided_at", TIMESTAMP, nullable=False),
        Field("decided_by", DataType.utf8(), nullable=True),
        Field("reason", DataType.utf8(), nullable=True),
        Field("topic", DataType.utf8(), nullable=False),
        Field("topic_id", DataType.utf8(), nullable=False),
        Field("partition", DataType.int32(), nullable=False),
        Field("start_offset", DataType.int64(), nullable=False),
        Field("end_offset", DataType.int64(), nullable=False),
        Field("records", DataType.int64(), nullable=False),
        Field("table_id", DataType.utf8(), nullable=False),
    ]
)
"""The publication table's columns; docs/reference/quality.md explains each."""


@translates_delta_errors
class DeltaPublicationTable:
    """Publication decisions about the ranges of one data table. Append-only.

    Each row stores the data table's Delta id. A recreated data table starts without decisions.

    Args:
        uri: The publication table, which pipelines share.
        data_table: The data table.
    """

    def __init__(self, uri: str, data_table: str) -> None:
        self._uri = uri
        self._data_table = data_table

    def table_id(self) -> str:
        """Return the Delta id of the data table; empty if it does not exist."""
        return _id_of(self._data_table)

    def append(
        self, plan: Plan, landing: Landing, decision: PublicationDecision, *, table_id: str
    ) -> None:
        """Append a decision about a plan: a row for each of its landed ranges, in one commit.

        Args:
            plan: The plan.
            landing: The ranges.
            decision: The decision.
            table_id: The `table_id` from before the plan was read. A recreated data table may have
                a plan with the same number.

        Raises:
            EngineFailed: The append failed, or its result is unknown. Repeating it is safe.
        """
        rows = [
            {
                "table_id": table_id,
                "pipeline": plan.pipeline,
                "plan_sequence": plan.sequence,
                "status": str(decision.status),
                "decided_at": decision.decided_at,
                "decided_by": decision.decided_by,
                "reason": decision.reason,
                "topic": plan.topic,
                "topic_id": plan.topic_id,
                "partition": count.partition,
                "start_offset": count.start,
                "end_offset": count.end,
                "records": count.records,
            }
            for count in landing.counts
        ]
        append_shared(self._uri, arrow_table(rows, COLUMNS), COLUMNS)

    def decisions(self, pipeline: str, plan: int | None = None) -> list[PublicationDecision]:
        """Return every decision about a pipeline's plans, or about one plan, in any order."""
        table = open_if_exists(self._uri)
        if table is None:
            return []
        found = query_rows(
            table,
            "SELECT plan_sequence, status, decided_at, decided_by, reason, "
            "partition, start_offset, end_offset "
            f"FROM t WHERE pipeline = '{pipeline}' AND table_id = '{self.table_id()}'"
            f"{'' if plan is None else f' AND plan_sequence = {plan}'}",
        )
        found_spans: dict[PublicationDecision, list[Mapping[int, SpanSet]]] = {}
        for row in found:
            decision = PublicationDecision(
                plan=row["plan_sequence"],
                status=PublicationStatus(row["status"]),
                decided_at=row["decided_at"],
                decided_by=row["decided_by"],
                reason=row["reason"],
            )
            span = SpanSet.of([Span(row["start_offset"], row["end_offset"])])
            found_spans.setdefault(decision, []).append({row["partition"]: span})
        return [
            replace(decision, spans=union_by_partition(spans))
            for decision, spans in found_spans.items()
        ]

    def decided_plans(self, pipeline: str) -> Sequence[int]:
        """Return the plans of a pipeline with a decision by a check or an operator."""
        table = open_if_exists(self._uri)
        if table is None:
            return []
        found = query_rows(
            table,
            "SELECT DISTINCT plan_sequence FROM t "
            f"WHERE pipeline = '{pipeline}' AND table_id = '{self.table_id()}'",
        )
        return [row["plan_sequence"] for row in found]

    def decided_at(self, pipeline: str, plan: int) -> datetime | None:
        """Return the time of the effective decision about a plan; None without one."""
        decided = effective_decisions(self.decisions(pipeline, plan)).get(plan)
        return decided.decided_at if decided else None

    def statuses(
        self, pipeline: str, plans: Collection[int] | None = None
    ) -> Mapping[int, PublicationStatus]:
        """Return the effective publication status of each decided plan, ordered by plan number.

        Equals `effective_decisions` over `decisions`, without a Python object for each row.

        Args:
            pipeline: The pipeline.
            plans: Only these plans; None for all.
        """
        table = open_if_exists(self._uri) if plans is None or plans else None
        if table is None:
            return {}
        wanted = "" if plans is None else f"AND plan_sequence IN ({', '.join(map(str, plans))})"
        found = query_rows(
            table,
            f"SELECT plan_sequence, first_value(status ORDER BY {_EFFECTIVE_FIRST}) AS status "
            f"FROM t WHERE pipeline = '{pipeline}' AND table_id = '{self.table_id()}' "
            f"{wanted} GROUP BY plan_sequence ORDER BY plan_sequence",
        )
        return {row["plan_sequence"]: PublicationStatus(row["status"]) for row in found}


def _id_of(data_table: str) -> str:
    """Return a table's Delta id; empty if the table does not exist."""
    with translate_delta_errors(data_table, "reading the table"):
        table = open_if_exists(data_table)
        return "" if table is None else str(table.metadata().id)


class Engine(StrEnum):
    """Query engine of the published view. Engines differ in how a query names a table by path."""

    SPARK = "spark"
    DUCKDB = "duckdb"


def _table_reference(uri: str, engine: Engine) -> str:
    match engine:
        case Engine.SPARK:
            return "delta.`{}`".format(uri.replace("`", "``"))
        case Engine.DUCKDB:
            return "delta_scan('{}')".format(uri.replace("'", "''"))
        case _:
            assert_never(engine)


_VISIBLE = ", ".join(f"'{status}'" for status in PublicationStatus if status.is_visible)

_EFFECTIVE_FIRST = f"""\
          CASE WHEN decided_by IS NULL THEN 1 ELSE 0 END,
          decided_at DESC,
          CASE WHEN status IN ({_VISIBLE}) THEN 1 ELSE 0 END"""
"""The order of the decisions about one plan, the effective one first."""

_EFFECTIVE = f"""\
    SELECT
      *,
      rank() OVER (
        PARTITION BY plan_sequence
        -- An operator's decision overrides checks, and the newest overrides older ones.
        ORDER BY
{_EFFECTIVE_FIRST}
      ) AS place
    FROM {{publication}}
    WHERE pipeline = '{{pipeline}}' AND table_id = '{{table_id}}'"""
"""Every decision; `place` is 1 for the effective one."""

_PUBLISHED = """\
SELECT *
FROM {rows} AS landed
WHERE EXISTS (
  SELECT 1
  FROM (
{effective}
  ) AS decisions
  WHERE place = 1 AND status IN ({visible})
    AND decisions.plan_sequence = landed.plan_sequence
    AND decisions.topic_id = landed.topic_id
    AND decisions.partition = landed.partition
    -- A decision applies to its own offsets, not to offsets that a later RESTORE brought back.
    AND decisions.start_offset <= landed.offset AND landed.offset < decisions.end_offset
)"""


def published_view(pipeline: str, data_table: str, publication_table: str, engine: Engine) -> str:
    """Return a query for the published rows of a pipeline's data table.

    The query reads the publication table each time it runs.
    """
    return published_rows(
        pipeline,
        data_table,
        rows=_table_reference(data_table, engine),
        publication=_table_reference(publication_table, engine),
    )


def published_rows(pipeline: str, data_table: str, *, rows: str, publication: str) -> str:
    """Return the query of `published_view` with other texts for its two tables.

    Args:
        pipeline: The pipeline of the data table.
        data_table: Location of the data table.
        rows: The data table in SQL.
        publication: The publication table in SQL.
    """
    effective = _EFFECTIVE.format(
        publication=publication, pipeline=pipeline, table_id=_id_of(data_table)
    )
    return _PUBLISHED.format(rows=rows, effective=effective, visible=_VISIBLE)

"""The published view in SQL: the rows of a data table by the decisions in the control table."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from tidemark.core.events import EventKind
from tidemark.core.publication import PublicationStatus


class Engine(StrEnum):
    """Query engine of the published view. Engines differ in how a query names a table by path."""

    SPARK = "spark"
    DUCKDB = "duckdb"


_VISIBLE = ", ".join(f"'{status}'" for status in PublicationStatus if status.is_visible)

EFFECTIVE_DECISIONS = f"""\
    SELECT plan_sequence, status, topic_id, partition, start_offset, end_offset
    FROM (
      SELECT
        *,
        rank() OVER (
          PARTITION BY plan_sequence
          -- An operator's decision overrides checks, and the newest overrides older ones.
          ORDER BY CASE WHEN requested_by IS NULL THEN 1 ELSE 0 END, event_number DESC
        ) AS place
      FROM (
        SELECT
          *,
          max(CASE WHEN event = '{EventKind.PLANNED}' THEN event_number END)
            OVER (PARTITION BY plan_sequence) AS planned_in
        FROM {{control}}
        WHERE pipeline = '{{pipeline}}'
          AND event IN ('{EventKind.PLANNED}', '{EventKind.PUBLICATION_DECIDED}')
      ) AS events
      -- A repair may record the plan of another copy under a number that was decided about.
      WHERE event = '{EventKind.PUBLICATION_DECIDED}' AND event_number > planned_in
    ) AS decisions
    WHERE place = 1"""
"""The effective decision of each plan, a row for each of its ranges: the SQL form of
`PlanRecord.decision`."""

_PUBLISHED = """\
SELECT *
FROM {rows} AS landed
WHERE EXISTS (
  SELECT 1
  FROM (
{effective}
  ) AS effective
  WHERE status IN ({visible})
    AND effective.plan_sequence = landed.plan_sequence
    AND effective.topic_id = landed.topic_id
    AND effective.partition = landed.partition
    -- A decision applies to its own offsets, not to offsets that a later RESTORE brought back.
    AND effective.start_offset <= landed.offset AND landed.offset < effective.end_offset
)"""


def published_view(pipeline: str, data_table: str, control_table: str, engine: Engine) -> str:
    """Return a query for the published rows of a pipeline's data table.

    The query reads the control table each time it runs.
    """
    return published_rows(
        pipeline,
        rows=_table_reference(data_table, engine),
        control=_table_reference(control_table, engine),
    )


def published_rows(pipeline: str, *, rows: str, control: str) -> str:
    """Return the query of `published_view` with other texts for its two tables.

    Args:
        pipeline: The pipeline of the data table.
        rows: The data table in SQL.
        control: The control table in SQL.
    """
    effective = EFFECTIVE_DECISIONS.format(control=control, pipeline=pipeline)
    return _PUBLISHED.format(rows=rows, effective=effective, visible=_VISIBLE)


def _table_reference(uri: str, engine: Engine) -> str:
    match engine:
        case Engine.SPARK:
            return "delta.`{}`".format(uri.replace("`", "``"))
        case Engine.DUCKDB:
            return "delta_scan('{}')".format(uri.replace("'", "''"))
        case _:
            assert_never(engine)

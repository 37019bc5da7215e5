"""Sums of settled plans by delta-rs' engine.

A control table grows with every run. Reading the rows of 10,000 plans as Python values takes
seconds. These queries take half a second for a million rows, and keep no copy of the rows in
memory. Few rows are read in full, which is four times faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from tidemark.core.accounting import RangeCount
from tidemark.core.errors import ControlTableDamaged
from tidemark.core.event_rows import Row
from tidemark.core.events import EventKind
from tidemark.core.ledger_summary import (
    CORRECTING_EVENTS,
    SETTLED_PLAN_EVENTS,
    ChainHead,
    Place,
    SettledTotals,
)
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import origin_of_row
from tidemark.core.plan import PlanKind
from tidemark.core.watermarks import Position
from tidemark.delta.control_repair import DUPLICATE_EVENTS_SQL
from tidemark.delta.row_queries import any_of
from tidemark.delta.table_io import python_rows

MAX_ROWS_IN_FULL = 200
"""Largest number of events and rows that are read in full. SQL sums up larger pipelines."""


def _sql_list(kinds: tuple[str, ...]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)


def _once(event: str) -> str:
    """Return the SQL condition for exactly one event of a kind; `count(DISTINCT ...)` is slower."""
    number = f"CASE WHEN event = '{event}' THEN event_number END"
    return f"min({number}) = max({number})"


_ALL = """
SELECT * FROM t WHERE pipeline = '{pipeline}'
"""

# One row for each event, plan, and 30 partitions, so that no query keeps the rows of ranges in
# memory. Rows of 30 partitions are distinct if the sum of their bits equals the bits; other rows
# are compared in full.
_EVENTS = """
CREATE TABLE events AS
SELECT event_number, event, plan_sequence, superseded_by, chunk, min(plan_kind) AS plan_kind,
  min(epoch) AS epoch, min(requested_by) AS requested_by, max(table_version) AS table_version,
  count(*) = 1 OR coalesce(sum(bit) = bit_or(bit), false) AS is_distinct
FROM (
  SELECT *, CAST(1 AS BIGINT) << (partition % 30) AS bit FROM t
  WHERE pipeline = '{pipeline}' AND ({wanted}))
GROUP BY event_number, event, plan_sequence, superseded_by, chunk, partition / 30
"""

_HAS_DOUBTFUL = """
SELECT 1 AS found FROM events WHERE NOT is_distinct LIMIT 1
"""

# A subquery, because a condition over thousands of numbers is slow to plan.
_DOUBTFUL = """
t WHERE pipeline = '{pipeline}'
  AND event_number IN (SELECT event_number FROM events WHERE NOT is_distinct)
"""

_IS_OVER = " AND ".join(
    [
        _once("planned"),
        _once("landed"),
        # fence: corrected-plan-is-read-in-full
        f"count(CASE WHEN event IN ({_sql_list(CORRECTING_EVENTS)}) THEN 1 END) = 0",
    ]
)

# fence: doubtful-replacement-is-read-in-full
_REPLACED_IN_DOUBT = f"""
SELECT plan_sequence FROM events WHERE event = '{EventKind.SUPERSEDED}'
  AND superseded_by NOT IN (SELECT plan_sequence FROM over)
"""

_SETTLED = f"""
CREATE TABLE settled AS
WITH over AS (
  SELECT plan_sequence, max(superseded_by) AS newest FROM events GROUP BY plan_sequence
  HAVING {_IS_OVER})
SELECT plan_sequence, newest FROM over WHERE plan_sequence NOT IN ({_REPLACED_IN_DOUBT})
"""

# `is_held`: the ranges of a settled plan, of its landing or of the newest replacing plan.
_RANGES = f"""
CREATE VIEW ranges AS
SELECT event, plan_kind, topic_id, partition, start_offset, end_offset, leader_epoch, records,
  unproven_gaps, t.plan_sequence,
  CASE event WHEN 'landed' THEN newest IS NULL
    WHEN '{EventKind.SUPERSEDED}' THEN superseded_by = newest END AS is_held
FROM t JOIN settled ON t.plan_sequence = settled.plan_sequence
WHERE pipeline = '{{pipeline}}' AND event IN ('landed', '{EventKind.SUPERSEDED}')
"""

_IN_WINDOW = """
topic_id = '{topic_id}' AND partition = {partition}
  AND start_offset < {end} AND end_offset > {start}
"""

_NEAR = f"""
SELECT DISTINCT plan_sequence AS number FROM t
WHERE pipeline = '{{pipeline}}' AND event IN ('landed', '{EventKind.SUPERSEDED}') AND {_IN_WINDOW}
"""

_REPLACING = f"""
SELECT DISTINCT superseded_by AS number FROM t
WHERE pipeline = '{{pipeline}}' AND event = '{EventKind.SUPERSEDED}' AND ({{wanted}})
"""

_COUNTS = f"""
SELECT * FROM ranges WHERE is_held AND {_IN_WINDOW} ORDER BY start_offset
"""

_IS_OTHER = f"""
event <> '{EventKind.BACKFILL_REQUESTED}' AND (event NOT IN ({_sql_list(SETTLED_PLAN_EVENTS)})
  OR plan_sequence NOT IN (SELECT plan_sequence FROM settled))
"""

# The few other events; their numbers, from memory, prune the files.
_OTHERS = f"""
SELECT DISTINCT event_number FROM events WHERE {_IS_OTHER}
"""

_WHOLE = f"""
SELECT * FROM t WHERE pipeline = '{{pipeline}}' AND ({{numbers}}) AND {_IS_OTHER}
"""

_NUMBERS = """
SELECT max(event_number) AS newest, count(DISTINCT event_number) AS present FROM events
"""

_SUMS = """
CREATE TABLE sums AS
SELECT topic_id, partition, plan_kind,
  max(CASE WHEN event = 'landed' THEN end_offset END) AS landed_end,
  last_value(leader_epoch ORDER BY end_offset, leader_epoch DESC NULLS FIRST)
    FILTER (WHERE event = 'landed') AS leader_epoch,
  min(CASE WHEN is_held THEN start_offset END) AS start_offset,
  max(CASE WHEN is_held THEN end_offset END) AS end_offset,
  sum(CASE WHEN is_held THEN end_offset - start_offset END) AS offsets,
  sum(CASE WHEN is_held THEN records END) AS records
FROM ranges GROUP BY topic_id, partition, plan_kind
"""

# No two ranges overlap. If they fill the space from the first to the last, they are one range.
_LANDED = """
CREATE TABLE landed AS
SELECT topic_id, partition, min(start_offset) AS start_offset, max(end_offset) AS end_offset,
  sum(offsets) = max(end_offset) - min(start_offset) AS is_filled
FROM sums WHERE partition IS NOT NULL AND offsets IS NOT NULL GROUP BY topic_id, partition
"""

_FILLED = """
SELECT * FROM landed WHERE is_filled
"""

# In other partitions, adjacent ranges form one island.
_ISLANDS = """
SELECT topic_id, partition, min(start_offset) AS start_offset, max(end_offset) AS end_offset
FROM (
  SELECT *, sum(apart) OVER (PARTITION BY topic_id, partition ORDER BY start_offset) AS island
  FROM (
    SELECT topic_id, partition, start_offset, end_offset, CASE WHEN start_offset = lag(end_offset)
        OVER (PARTITION BY topic_id, partition ORDER BY start_offset) THEN 0 ELSE 1 END AS apart
    FROM ranges WHERE is_held AND EXISTS (
      SELECT 1 FROM landed WHERE NOT is_filled
        AND landed.topic_id = ranges.topic_id AND landed.partition = ranges.partition)))
GROUP BY topic_id, partition, island
"""

_ENDS = """
SELECT topic_id, partition, plan_kind, landed_end AS end_offset, leader_epoch FROM sums
WHERE partition IS NOT NULL AND landed_end IS NOT NULL
"""

_HEADS = """
SELECT epoch, plan_kind, max(plan_sequence) AS plan_sequence, max(table_version) AS table_version
FROM events WHERE event = 'landed' AND plan_sequence IN (SELECT plan_sequence FROM settled)
GROUP BY epoch, plan_kind
"""

_RECORDS = """
SELECT sum(records) AS records FROM sums
"""

_REQUESTERS = """
SELECT requested_by, chunk, max(plan_sequence) AS plan_sequence
FROM events WHERE event IN ('planned', 'adopted')
  AND plan_sequence IN (SELECT plan_sequence FROM settled)
GROUP BY requested_by, chunk
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRows:
    """The rows of a pipeline in the control table, with sums of settled plans.

    Attributes:
        others: Rows of all plans that are not settled; of a pipeline with few rows, all rows.
        settled: Sums of the settled plans that are not in `others`.
        newest: Highest event number in the table; 0 without events.
        present: Number of events in the table.
    """

    others: list[Row]
    settled: SettledTotals
    newest: int
    present: int


def read_pipeline_rows(table: DeltaTable, pipeline: str) -> PipelineRows:
    """Read the rows that the ledger of a pipeline needs.

    Raises:
        ControlTableDamaged: The table contains a row of an event more than once.
    """
    engine = QueryBuilder().register("t", table)

    def read(sql: str) -> Any:
        return engine.execute(sql.format(pipeline=pipeline, wanted="true")).read_all()

    def rows(sql: str) -> list[dict[str, Any]]:
        return python_rows(read(sql))

    if (table.transaction_version(pipeline) or 0) <= MAX_ROWS_IN_FULL:
        whole = read(_ALL)
        if whole.num_rows <= MAX_ROWS_IN_FULL:
            return _unsummed(python_rows(whole))
    for sql in (_EVENTS, _SETTLED, _RANGES):
        rows(sql)
    if rows(_HAS_DOUBTFUL):
        duplicates = rows(DUPLICATE_EVENTS_SQL.format(source=_DOUBTFUL))
        if duplicates:
            numbers = tuple(each["event_number"] for each in duplicates)
            raise ControlTableDamaged.by_duplicates(pipeline=pipeline, events=numbers)
    for sql in (_SUMS, _LANDED):
        rows(sql)
    settled = SettledTotals(
        landed=_spans([*rows(_FILLED), *rows(_ISLANDS)]),
        ends={
            (row["topic_id"], row["partition"], PlanKind(row["plan_kind"])): Position(
                offset=row["end_offset"], leader_epoch=row["leader_epoch"]
            )
            for row in rows(_ENDS)
        },
        chain_heads={
            (row["epoch"], PlanKind(row["plan_kind"])): ChainHead(
                sequence=row["plan_sequence"], table_version=row["table_version"]
            )
            for row in rows(_HEADS)
        },
        requesters={origin_of_row(row): row["plan_sequence"] for row in rows(_REQUESTERS)},
        records=rows(_RECORDS)[0]["records"] or 0,
    )
    (events,) = rows(_NUMBERS)
    others = (row["event_number"] for row in rows(_OTHERS))
    return PipelineRows(
        others=rows(
            _WHOLE.replace("{numbers}", in_runs("event_number", SpanSet.of_numbers(others)))
        ),
        settled=settled,
        newest=events["newest"] or 0,
        present=events["present"],
    )


def read_settled_counts(
    table: DeltaTable, pipeline: str, topic_id: str, partition: int, window: Span
) -> Mapping[int, Sequence[RangeCount]]:
    """Read the current counts of the settled plans' ranges that overlap a window, by plan."""
    engine = QueryBuilder().register("t", table)
    values: dict[str, Any] = {
        "pipeline": pipeline,
        "topic_id": topic_id,
        "partition": partition,
        "start": window.start,
        "end": window.end,
    }

    def rows(sql: str, wanted: str = "") -> list[dict[str, Any]]:
        return python_rows(engine.execute(sql.format(**values, wanted=wanted)).read_all())

    near = [row["number"] for row in rows(_NEAR)]
    if not near:
        return {}
    # Whether a plan is settled depends on its events, and on the plans that replaced its rows.
    replacing = rows(_REPLACING, in_runs("plan_sequence", SpanSet.of_numbers(near)))
    numbers = [*near, *(row["number"] for row in replacing)]
    for sql in (_EVENTS, _SETTLED, _RANGES):
        rows(sql, in_runs("plan_sequence", SpanSet.of_numbers(numbers)))
    found: dict[int, list[RangeCount]] = {}
    for row in rows(_COUNTS):
        count = RangeCount(
            partition=partition,
            start=row["start_offset"],
            end=row["end_offset"],
            records=row["records"] or 0,
            unproven_gaps=row["unproven_gaps"] or 0,
            leader_epoch=row["leader_epoch"],
        )
        found.setdefault(row["plan_sequence"], []).append(count)
    return found


def _unsummed(rows: list[Row]) -> PipelineRows:
    numbers = {row["event_number"] for row in rows}
    return PipelineRows(
        others=rows,
        settled=SettledTotals(),
        newest=max(numbers, default=0),
        present=len(numbers),
    )


def _spans(rows: list[dict[str, Any]]) -> Mapping[Place, SpanSet]:
    spans: dict[Place, list[Span]] = {}
    for row in rows:
        place = (row["topic_id"], row["partition"])
        spans.setdefault(place, []).append(Span(row["start_offset"], row["end_offset"]))
    return {place: SpanSet.of(some) for place, some in spans.items()}


def in_runs(column: str, runs: SpanSet) -> str:
    """Return the SQL condition that a column has one of some numbers; at least one is needed."""
    return any_of([f"{column} BETWEEN {run.start} AND {run.end - 1}" for run in runs])

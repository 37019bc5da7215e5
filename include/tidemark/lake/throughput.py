"""How fast a pipeline has moved lately, by delta-rs' own engine."""

from __future__ import annotations

from deltalake import DeltaTable

from tidemark.core.throughput import RUNS, Run, Throughput
from tidemark.lake.table_io import query_rows

_RUNS = """
SELECT plan_sequence,
  min(CASE WHEN event = 'planned' THEN recorded_at END) AS planned_at,
  max(CASE WHEN event = 'landed' THEN recorded_at END) AS landed_at,
  sum(CASE WHEN event = 'landed' THEN end_offset - start_offset END) AS offsets
FROM t WHERE pipeline = '{pipeline}' AND plan_kind = 'live' AND event IN ('planned', 'landed')
  AND plan_sequence NOT IN (
    SELECT plan_sequence FROM t
    WHERE pipeline = '{pipeline}' AND event IN ('undo_started', 'undone'))
GROUP BY plan_sequence
HAVING count(CASE WHEN event = 'planned' THEN 1 END) > 0
  AND count(CASE WHEN event = 'landed' THEN 1 END) > 0
ORDER BY plan_sequence DESC LIMIT {most}
"""

_LOWS = """
SELECT partition, min(low_watermark) AS low FROM t
WHERE pipeline = '{pipeline}' AND event = 'planned' AND plan_sequence = {sequence}
GROUP BY partition
"""


def read_throughput(table: DeltaTable, pipeline: str) -> Throughput:
    """The newest live plans of a pipeline that landed, and were not taken out again."""
    runs = [
        Run(
            sequence=row["plan_sequence"],
            planned_at=row["planned_at"],
            landed_at=row["landed_at"],
            offsets=row["offsets"] or 0,
        )
        for row in reversed(query_rows(table, _RUNS.format(pipeline=pipeline, most=RUNS)))
    ]
    if not runs:
        return Throughput()
    lows = query_rows(table, _LOWS.format(pipeline=pipeline, sequence=runs[0].sequence))
    return Throughput(runs=runs, lows={row["partition"]: row["low"] for row in lows})

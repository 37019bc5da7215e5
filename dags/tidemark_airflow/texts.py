"""The pages that Airflow shows for a DAG, written from its spec."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core.layout import Layout
from tidemark.core.spec import PipelineSpec


def pipeline_page(spec: PipelineSpec, layout: Layout) -> str:
    """What one pipeline does, where its tables are, how to repair and to backfill it."""
    limit = f"{spec.records_per_run:,} offsets" if spec.records_per_run else "no limit"
    start = spec.start_at.isoformat() if spec.start_at else spec.start.value
    return f"""\
### {spec.name}

{spec.description}

| | |
|---|---|
| Kafka topic | `{spec.topic}`, connection `{spec.connection}`, {spec.isolation_level.value} |
| Data table | `{layout.data_table(spec.target)}` |
| Control table | `{layout.control_table}` |
| Quality suite | {f"`{spec.suite}`" if spec.suite else "built-in checks only"} |
| First run starts at | {start} |
| Taken by one run | {limit} |

**plan** records which offsets this run reads. With nothing new to read, the run ends there and no
Spark starts. **ingest** lands exactly those offsets, once. **quality** checks what landed.
**publish** reports the table version and the offset ranges as an asset event.

**Clearing a task is safe.** A run keeps its plan: `ingest` does not land a landed plan again,
`quality` adds another attempt to its results, `publish` adds another event.

**To read a range of offsets on purpose**, trigger the DAG `tidemark_backfill`. Airflow's own
backfill goes by dates, and a run takes what is unread whatever its date.
"""


def group_page(group: str, members: Sequence[PipelineSpec], layout: Layout) -> str:
    """Which pipelines a group has, and what becomes of the others if one of them fails."""
    rows = "\n".join(
        f"| {spec.name} | `{spec.topic}`, connection `{spec.connection}` "
        f"| `{layout.data_table(spec.target)}` | {spec.description} |"
        for spec in members
    )
    return f"""\
### Group {group}

| pipeline | Kafka topic | data table | |
|---|---|---|---|
{rows}

The control table is `{layout.control_table}`.

**plan** records for each pipeline which offsets this run reads. With nothing new to read in any,
the run ends there and no Spark starts. **ingest** lands them in one Spark application, **quality**
checks them in another. **publish** reports an asset event for each table that landed and passed.

A pipeline that fails fails its task, and **complete** with it; the others go on to their asset
event. Its plan stays open, and the next run takes it over.

**Clearing a task is safe.** A run keeps its plans: `ingest` does not land a landed plan again,
`quality` adds another attempt to its results, `publish` adds other events.

**To read a range of offsets on purpose**, trigger the DAG `tidemark_backfill`.
"""


BACKFILL_PAGE = """\
### Land an explicit range of offsets

Choose a pipeline, a partition and a range. `end` is the next offset *after* the range: 0 to 100
takes the offsets 0 to 99. Only what is neither landed nor planned is read, so asking for a range
twice doubles nothing; a range that is landed already ends the run at **plan**, and no Spark starts.

The range must lie inside the log that Kafka still has: `tidemark status PIPELINE` shows the marks.
One backfill of a pipeline is open at a time.
"""

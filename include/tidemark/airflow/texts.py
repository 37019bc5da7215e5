"""The pages that Airflow shows for a DAG, written from its spec."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core.errors import format_duration
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec


def pipeline_page(spec: PipelineSpec, layout: Layout) -> str:
    """What one pipeline does, where its tables are, how to repair and to backfill it."""
    limits = (
        f"{spec.records_per_run:,} offsets" if spec.records_per_run else "",
        f"about {spec.bytes_per_run:,} bytes" if spec.bytes_per_run else "",
        f"as much as lands in about {format_duration(spec.time_per_run)}"
        if spec.time_per_run
        else "",
    )
    limit = ", ".join(filter(None, limits)) or "no limit"
    start = spec.start_at.isoformat() if spec.start_at else spec.start.value
    typed = (
        f"`{layout.data_table(spec.decode.target)}`, with its quarantine "
        f"`{layout.data_table(spec.decode.quarantine_target)}`; **decode** makes them of all that "
        "has landed, also when there was nothing to read"
        if spec.decode
        else "none"
    )
    or_decode = ", and nothing left to decode" if spec.decode else ""
    upsert = spec.decode.upsert if spec.decode else None
    return f"""\
### {spec.name}

{spec.description}

| | |
|---|---|
| Kafka topic | `{spec.topic}`, connection `{spec.connection}`, {spec.isolation_level.value} |
| Data table | `{layout.data_table(spec.target)}` |
| Typed table | {typed} |
| Upsert table | {f"`{layout.data_table(upsert.target)}`, by **upsert**" if upsert else "none"} |
| Control table | `{layout.control_table}` |
| Quality suite | {f"`{spec.suite}`" if spec.suite else "built-in checks only"} |
| First run starts at | {start} |
| Taken by one run | {limit} |

**plan** records which offsets this run reads. With nothing new to read{or_decode}, the run
ends there and no Spark starts. **ingest** lands exactly those offsets, once. **quality** checks
what landed. **publish** reports the table version and the offset ranges as an asset event.

**Clearing a task is safe.** A run keeps its plan: `ingest` does not land a landed plan again,
`quality` adds another attempt to its results, `publish` adds another event.

**To land offsets of your choice**, trigger the DAG `tidemark_backfill`. `airflow backfill create`
lands records by the time they are stamped with; all other runs take what is unread, whatever their
date.
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
and nothing left to decode or to merge, the run ends there and no Spark starts. **ingest** lands
them in one Spark application, **quality** checks them in another; **decode** and **upsert** make
typed tables and upsert tables of them, where a spec asks for it. **publish** reports
an asset event for each landed plan that the published view shows.

A pipeline that fails fails its task, and **complete** with it; the others go on to their asset
event. Its plan stays open, and the next run takes it over.

**Clearing a task is safe.** A run keeps its plans: `ingest` does not land a landed plan again,
`quality` adds another attempt to its results, `publish` adds other events.

**To land offsets of your choice**, trigger the DAG `tidemark_backfill`. `airflow backfill create`
lands records by the time they are stamped with.
"""


BACKFILL_PAGE = """\
### Land offsets that you name

Choose a pipeline and say which offsets, in *one* of four ways: ranges of offsets, a time window,
all that Kafka has, or what an earlier plan was about. Only what is neither landed nor planned is
read, so asking twice doubles nothing; if nothing is missing, the run ends and no Spark starts. Tick
*Replace* to read what has landed as well.

**request** shows in its log what would be landed and what is left out and why, and records it once:
a cleared or retried task goes on with what was decided then. Then each **chunk** is planned, landed
and checked, one after the other, in a transaction of its own.

**Replace** lands again what has landed: the new rows take the place of the old ones, each chunk in
one commit. It needs a reason. **Dry run** shows in the log of `request` what would be done.

**To cancel**, mark the run as failed: whole chunks are in the table or not at all. **To go on**,
clear the whole run: chunks that have landed are found landed. A chunk that failed keeps its plan,
which lands before any other chunk, or is given up with `tidemark abandon`. **complete** fails
unless every chunk is in the table.

Offsets must be in the log that Kafka has: `tidemark status PIPELINE` shows the watermarks.
"""


STATUS_PAGE = """\
### Is everything keeping up?

**look** compares every pipeline with its topic and writes what it sees to the Delta table
`control/status`, one row for each pipeline: lag in records and in time, retention runway, the last
landing, open plans, when it will have caught up. **alarm** fails for each pipeline that a run would
be refused for, or that breaks a rule of the `alarms` section in its spec. The message names the
error and the command that helps; docs/runbook.md has more.

A failed task of any Tidemark DAG, this one too, is told to the webhook in the connection
`tidemark_alarm`, if there is one.
"""


MAINTENANCE_PAGE = """\
### Keep tables small

**tables** has one mapped task for each table of each pipeline: its small files become few, and
files go that no version of the last week refers to. **control** does the same for the tables that
pipelines share: control table, kept schemas, quality results, publication decisions, status.
**quality_docs** removes old pages of quality checks; their results stay.

Runs of pipelines, backfills and readers need not stop. No row changes. Files that an open plan may
have written stay, whatever their age. A table that fails stops no other; the run fails.

**Clearing a task is safe**: it goes on with what is left. Trigger the DAG with *Dry run* to see in
the logs what would be removed. `tidemark maintain` does the same from the command line, also for
the copies that backfills have made (`tidemark maintain PIPELINE@COPY`).
"""

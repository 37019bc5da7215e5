"""The pages that Airflow shows for a DAG, written from its spec."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core.errors import format_duration
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec


def pipelines_page(members: Sequence[PipelineSpec], layout: Layout) -> str:
    """Return the page of a DAG: the tables of its pipelines, its tasks, and how to repair."""
    tables = "\n".join(_pipeline_section(spec, layout) for spec in members)
    typed = any(spec.decode for spec in members)
    or_decode = ", and no record is left to decode" if typed else ""
    typed_tasks = (
        " **decode** and **upsert** bring the typed tables and upsert tables up to date with all\n"
        "published records, also if there was nothing to read."
        if typed
        else ""
    )
    return f"""\
{tables}
The control table is `{layout.control_table}`.

### Tasks

**plan** records which offsets this run reads. If there is nothing new to read{or_decode}, the run
ends there and no Spark starts. **ingest** lands exactly those offsets, once. **check** checks what
landed, and publishes or blocks it.{typed_tasks}
**publish** reports table versions and offset ranges as asset events.

If a task fails for one pipeline, the next tasks continue with the others, and **complete** fails
the run. A plan that did not land stays open, and the next run takes it over.

**Clearing a task is safe** for all rows. A run keeps its plans: `ingest` does not land a landed
plan again, `check` adds another attempt to the results, `publish` adds another event. After `plan`
is cleared, events of typed and upsert tables begin at the version of now.

**To land offsets of your choice**, trigger the DAG `tidemark_backfill`. `airflow backfill create`
lands records by their timestamps; all other runs read what is unread, whatever their date.
"""


def _pipeline_section(spec: PipelineSpec, layout: Layout) -> str:
    limits = (
        f"{spec.records_per_run:,} offsets" if spec.records_per_run else "",
        f"about {spec.bytes_per_run:,} bytes" if spec.bytes_per_run else "",
        f"as much as lands in about {format_duration(spec.time_per_run)}"
        if spec.time_per_run
        else "",
    )
    limit = ", ".join(filter(None, limits)) or "no limit"
    start = spec.start_at.isoformat() if spec.start_at else spec.start.value
    decode = spec.decode
    typed = (
        f"`{layout.data_table(decode.target)}`, with its quarantine "
        f"`{layout.data_table(decode.quarantine_target)}`"
        if decode
        else "none"
    )
    upsert = f"`{layout.data_table(decode.upsert.target)}`" if decode and decode.upsert else "none"
    return f"""\
### {spec.name}

{spec.description}

| | |
|---|---|
| Kafka topic | `{spec.topic}`, connection `{spec.connection}`, {spec.isolation_level.value} |
| Data table | `{layout.data_table(spec.target)}` |
| Typed table | {typed} |
| Upsert table | {upsert} |
| Quality suite | {f"`{spec.suite}`" if spec.suite else "built-in checks only"} |
| First run starts at | {start} |
| Limit of one run | {limit} |
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

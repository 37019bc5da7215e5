"""The pages of DAGs in Airflow."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.app.option_texts import DRY_RUN, REPLACE
from tidemark.core.texts import format_duration
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec


def pipelines_page(members: Sequence[PipelineSpec], layout: Layout) -> str:
    """Return the page of a DAG: the tables of its pipelines, its tasks, and how to repair."""
    tables = "\n".join(_pipeline_section(spec, layout) for spec in members)
    work, typed_tasks = "read or check", ""
    if any(spec.decode for spec in members):
        work = "read, check, decode or merge"
        typed_tasks = (
            " **decode** and **upsert** bring the typed tables and upsert tables up to date with "
            "all\npublished records, also if there was nothing to read."
        )
    return f"""\
{tables}
The control table is `{layout.control_table}`.

### Tasks

**plan** records which offsets this run reads. If there is nothing to {work}, the run ends there and
no Spark starts. **ingest** lands exactly those offsets, once. **check** checks what landed, and
publishes or blocks it.{typed_tasks}
**publish** reports table versions and offset ranges as asset events.

If a task fails for one pipeline, the next tasks continue with the others, and **complete** fails
the run. A plan that did not land stays open, and the next run takes it over.

**Clearing a task is safe** for all rows. A run keeps its plans: `ingest` does not land a landed
plan again, `check` adds another attempt to the results, `publish` adds another event. After `plan`
is cleared, events of typed and upsert tables begin at the current version.

**To land offsets of your choice**, trigger the DAG `tidemark_backfill`.
`tidemark airflow backfill create` lands records by their timestamps; in an Airflow of your own, the
command begins with `airflow`. All other runs read all unread offsets, with any date.
"""


def _pipeline_section(spec: PipelineSpec, layout: Layout) -> str:
    limits = (
        f"{spec.records_per_run:,} offsets" if spec.records_per_run else "",
        f"about {spec.bytes_per_run:,} bytes" if spec.bytes_per_run else "",
        f"as much as lands in about {format_duration(spec.time_per_run)}"
        if spec.time_per_run
        else "",
    )
    start = spec.start_at.isoformat() if spec.start_at else spec.start.value
    tables = [f"`{layout.data_table(target)}`" for target in spec.targets.values()]
    data, typed, quarantine, upsert = tables + ["none"] * (4 - len(tables))
    return f"""\
### {spec.name}

{spec.description}

| | |
|---|---|
| Kafka topic | `{spec.topic}`, connection `{spec.connection}`, {spec.isolation_level.value} |
| Data table | {data} |
| Typed table | {typed} |
| Quarantine | {quarantine} |
| Upsert table | {upsert} |
| Quality suite | {f"`{spec.suite}`" if spec.suite else "built-in checks only"} |
| First run starts at | {start} |
| Limit of one run | {", ".join(filter(None, limits)) or "no limit"} |
"""


BACKFILL_PAGE = f"""\
### Land offsets of your choice

Choose a pipeline. In *Which offsets*, choose how to select them: by offset ranges, a time window,
the retained log, or the ranges of a plan. Offsets that are landed or planned are skipped, so a
repeated request duplicates no record. If no offset is missing, the run ends and no Spark starts.

**request** lists in its log which offsets would land, and which are left out and why. It records
the selection once: a cleared or retried task uses the recorded selection. Then each **chunk** is
planned, landed and checked, one after the other, in a transaction of its own.

**Replace**: {REPLACE} It requires a reason.

**Dry run**: {DRY_RUN} The log of `request` contains the result.

**To cancel**, mark the run as failed: each chunk is in the table as a whole or not at all. **To
continue**, clear the whole run: landed chunks are not landed again. A chunk that failed keeps its
plan. That plan lands before any other chunk; `tidemark abandon` abandons it. **complete** fails
unless every chunk is in the table.

Kafka must still have the offsets: `tidemark status PIPELINE --wide` shows the watermarks.
"""


STATUS_PAGE = """\
### Status and alarms

**look** compares every pipeline with its topic. It writes one row for each pipeline to the Delta
table `control/status`. A row has the lag in records and in time, its expected end, the
retention runway, the last landing and open plans. The task also appends the figures that change
with time to `control/status_history`, which keeps a month. **alarm** fails for each pipeline with
an alarm. The message contains the error and the command that fixes it; docs/runbook.md has more.

Each failed task of a Tidemark DAG sends an alarm to the webhook in the connection
`tidemark_alarm`, if Airflow has this connection. This DAG does so too.
"""


MAINTENANCE_PAGE = """\
### Keep tables small

**tables** has one mapped task for each table of each pipeline. It compacts small files, and removes
files that no version of the last week refers to. **control** does the same for the tables that
pipelines share: control table, stored schemas, quality results, status.
It removes statuses older than a month from the status history.
**data_docs** removes old Data Docs; the results of the checks stay.

Runs of pipelines, backfills and readers need not stop. No row changes. Files that an open plan may
have written stay at any age. A table that fails does not stop the others; the run fails.

**Clearing a task is safe**: it continues with the remaining work. Trigger the DAG with *Dry run* to
list in the logs what would be removed. `tidemark maintain` does the same on the command line.
"""

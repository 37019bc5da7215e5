"""The DAG that lands offsets of a form, chunk by chunk."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param, task_group

from tidemark.airflow.chain import REQUESTED_BY, dag_settings
from tidemark.airflow.chunks import (
    BACKFILLED,
    check_chunk,
    finish_backfill,
    ingest_chunk,
    publish_chunk,
    request_backfill,
)
from tidemark.airflow.operators import JobOperator
from tidemark.airflow.texts import BACKFILL_PAGE
from tidemark.app import App
from tidemark.spec.ref import COPY_NAME

PIPELINE = "{{ params.pipeline }}{{ '@' ~ params.into if params.into }}"


@task_group(group_id="chunk")
def _land_chunk(number: Any) -> None:
    """Ingest, check and publish one chunk; chunks run one after the other."""
    chunk = {"pipeline": PIPELINE, "requested_by": REQUESTED_BY, "chunk": number}
    # The data table takes the plans of a pipeline's backfills in their order.
    job: dict[str, Any] = {"op_kwargs": chunk, "max_active_tis_per_dagrun": 1}
    ingested = JobOperator(
        task_id="ingest",
        python_callable=ingest_chunk,
        execution_timeout=timedelta(hours=6),
        doc_md="Plans the chunk, or finds its plan, and lands it exactly once, in one transaction.",
        **job,
    )
    checked = JobOperator(
        task_id="check",
        python_callable=check_chunk,
        execution_timeout=timedelta(hours=2),
        doc_md="Checks the rows of the chunk. If a check fails, the rows stay in the table.",
        **job,
    )
    published = PythonOperator(
        task_id="publish",
        python_callable=publish_chunk,
        op_kwargs=chunk,
        outlets=[BACKFILLED],
        execution_timeout=timedelta(minutes=15),
        doc_md="Reports the table version and the offset ranges as an asset event.",
    )
    ingested >> checked >> published


def _form(pipelines: list[str]) -> dict[str, Param]:
    """Return the fields of the form."""

    def optional(kind: str, title: str, description: str, **limits: Any) -> Param:
        kinds = ["null", kind]
        return Param(None, type=kinds, title=title, description=description, **limits)

    def flag(title: str, description: str) -> Param:
        return Param(False, type="boolean", title=title, description=description)

    return {
        "pipeline": Param(
            type="string",
            enum=pipelines,
            title="Pipeline",
            description="The pipeline whose table receives the records.",
        ),
        "offsets": optional(
            "string",
            "Offset ranges",
            "PARTITION:START-END, separated by commas. END is exclusive: 1:0-100 selects the "
            "offsets 0 to 99 of partition 1.",
        ),
        "from": optional(
            "string",
            "Time window: from",
            "Or: from the first record at or after this time, in each partition,",
            format="date-time",
        ),
        "until": optional(
            "string",
            "Time window: until",
            "to the first record at or after this time. The end is exclusive.",
            format="date-time",
        ),
        "retained": flag("The retained log", "Or: all offsets that Kafka has now."),
        "plan": optional(
            "integer",
            "A plan's ranges",
            "Or: the missing offsets of the plan with this number. With Replace: all offsets of "
            "the plan, also offsets that another plan landed.",
            minimum=1,
        ),
        "partitions": optional(
            "string",
            "Partitions",
            "Limits a time window or the retained log to these, such as 0, 3.",
            pattern=r"^\s*\d+(\s*,\s*\d+)*\s*$",
        ),
        "replace": flag(
            "Replace",
            "Read landed offsets again. The new rows replace the old ones, each chunk in one "
            "commit. A chunk is refused if Kafka no longer has a record of an old row.",
        ),
        "reason": optional(
            "string", "Reason", "Required with Replace; stored in the control table."
        ),
        "into": optional(
            "string",
            "Into another table",
            "Write to the table PIPELINE@NAME, which contains backfills alone.",
            pattern=f"^{COPY_NAME}$",
        ),
        "chunk": optional(
            "integer",
            "Chunk size",
            "Maximum offsets of a chunk; by default limits.records_per_chunk.",
            minimum=1,
        ),
        "readable_only": flag(
            "Only readable offsets",
            "Skip offsets that Kafka has deleted. Otherwise the backfill is refused. With Replace, "
            "the old rows at deleted offsets stay.",
        ),
        "dry_run": flag("Dry run", "Only show the chunks in the log of `request`."),
        "approved": flag(
            "Approved", "Allow more offsets than limits.records_per_backfill of the spec."
        ),
    }


def backfill_dag() -> DAG:
    """Return the DAG that lands the offsets of a form."""
    run = {"pipeline": PIPELINE, "requested_by": REQUESTED_BY}
    with DAG(
        dag_id="tidemark_backfill",
        description="Land offsets by range, by time, or all that Kafka has; or replace landed rows",
        doc_md=BACKFILL_PAGE,
        schedule=None,
        **dag_settings(retries=3),
        tags=["tidemark", "backfill"],
        params=_form(list(App.from_environment().specs)),
    ) as dag:
        requested = PythonOperator(
            task_id="request",
            python_callable=request_backfill,
            op_kwargs=run,
            execution_timeout=timedelta(minutes=15),
            doc_md="Selects the offsets, shows and records them. Starts no Spark.",
        )
        chunks = _land_chunk.expand(number=requested.output)
        finished = PythonOperator(
            task_id="complete",
            python_callable=finish_backfill,
            op_kwargs={**run, "chunks": requested.output},
            trigger_rule="all_done",
            execution_timeout=timedelta(minutes=15),
            doc_md="Fails unless every chunk is in the table.",
        )
        # `complete` need not follow `publish`: a failed check fails the run without it.
        # The type stubs treat an expanded group as one node.
        chunks.children["chunk.ingest"] >> finished  # type: ignore[attr-defined]
    return dag

"""The DAG that lands offsets of a form, chunk by chunk."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task_group

from tidemark.airflow import chunks
from tidemark.airflow.chain import REQUESTED_BY, dag_settings, form_field
from tidemark.airflow.operators import JobOperator, RunOperator
from tidemark.airflow.texts import BACKFILL_PAGE
from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.app.steps import STEPS
from tidemark.bronze.backfill.selection import SelectBy

_HOW = "How to land them"
"""Section of the form, below the choice of offsets."""

_PIPELINE = "{{ params.pipeline }}"


@task_group(group_id="chunk")
def _land_chunk(number: Any) -> None:
    """Ingest, check and publish one chunk; chunks run one after the other."""
    chunk = {"pipeline": _PIPELINE, "requested_by": REQUESTED_BY, "chunk": number}
    # The data table takes the plans of a pipeline's backfills in their order.
    job: dict[str, Any] = {"op_kwargs": chunk, "max_active_tis_per_dagrun": 1}
    ingested = JobOperator(
        task_id="ingest",
        python_callable=chunks.ingest_chunk,
        execution_timeout=STEPS["ingest"].timeout,
        doc_md="Plans the chunk, or finds its plan, and lands it exactly once, in one transaction.",
        **job,
    )
    checked = JobOperator(
        task_id="check",
        python_callable=chunks.check_chunk,
        execution_timeout=STEPS["check"].timeout,
        doc_md="Checks the rows of the chunk. If a check fails, the rows stay in the table.",
        **job,
    )
    published = RunOperator(
        task_id="publish",
        python_callable=chunks.publish_chunk,
        op_kwargs=chunk,
        outlets=[chunks.BACKFILLED],
        execution_timeout=timedelta(minutes=15),
        doc_md="Reports the table version and the offset ranges as an asset event.",
    )
    ingested >> checked >> published


def _form(pipelines: list[str]) -> dict[str, Param]:
    """Return the fields of the form."""

    def optional(kind: str, title: str, description: str, **limits: Any) -> Param:
        # Airflow marks a field as required unless it may be null.
        kinds = ["null", kind]
        return form_field(title, description, default=None, type=kinds, **limits)

    def flag(title: str, description: str, **more: Any) -> Param:
        kinds = ["null", "boolean"]
        return form_field(title, description, default=False, type=kinds, **more)

    return {
        "pipeline": form_field(
            "Pipeline",
            "The pipeline whose table receives the records.",
            type="string",
            enum=pipelines,
        ),
        "dry_run": flag(
            "Dry run", f"{option_texts.DRY_RUN} The log of `request` contains the result."
        ),
        "select_by": form_field(
            "Which offsets",
            "How to select the offsets: fill in the fields of this choice only.",
            default=SelectBy.OFFSETS.value,
            type="string",
            enum=[way.value for way in SelectBy],
        ),
        "offsets": optional(
            "string", "Offset ranges", f"{option_texts.OFFSETS} Separate ranges with commas."
        ),
        "from": optional("string", "Time window: from", option_texts.FROM, format="date-time"),
        "until": optional("string", "Time window: until", option_texts.UNTIL, format="date-time"),
        "plan": optional("integer", "Ranges of a plan", option_texts.PLAN, minimum=1),
        "partitions": optional(
            "string",
            "Partitions",
            f"{option_texts.PARTITIONS} Separate several numbers with commas.",
            pattern=r"^\s*\d+(\s*,\s*\d+)*\s*$",
        ),
        "replace": flag("Replace", option_texts.REPLACE, section=_HOW),
        "reason": optional(
            "string",
            "Reason",
            f"Reason; stored in the control table. {option_texts.REASON_OF_REPLACEMENT}",
            section=_HOW,
        ),
        "chunk": optional("integer", "Chunk size", option_texts.CHUNK, minimum=1, section=_HOW),
        "readable_only": flag("Only readable offsets", option_texts.READABLE_ONLY, section=_HOW),
        "approved": flag("Approved", option_texts.APPROVED, section=_HOW),
    }


def backfill_dag() -> DAG:
    """Return the DAG that lands the offsets of a form."""
    run = {"pipeline": _PIPELINE, "requested_by": REQUESTED_BY}
    with DAG(
        dag_id="tidemark_backfill",
        description=option_texts.BACKFILL,
        doc_md=BACKFILL_PAGE,
        schedule=None,
        **dag_settings(retries=3),
        tags=["tidemark", "backfill"],
        params=_form(list(App.from_environment().specs)),
    ) as dag:
        requested = RunOperator(
            task_id="request",
            python_callable=chunks.request_backfill,
            op_kwargs=run,
            execution_timeout=timedelta(minutes=15),
            doc_md="Selects the offsets, shows and records them. Starts no Spark.",
        )
        landed = _land_chunk.expand(number=requested.output)
        finished = RunOperator(
            task_id="complete",
            python_callable=chunks.finish_backfill,
            op_kwargs={**run, "chunks": requested.output},
            trigger_rule="all_done",
            execution_timeout=timedelta(minutes=15),
            doc_md="Fails unless every chunk is in the table.",
        )
        # `complete` need not follow `publish`: a failed check fails the run without it.
        # The type stubs treat an expanded group as one node.
        landed.children["chunk.ingest"] >> finished  # type: ignore[attr-defined]
    return dag

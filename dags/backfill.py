"""The DAG that lands offsets that somebody names in a form, chunk by chunk."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param, task_group

from tidemark.airflow.chain import REQUESTED_BY, START_DATE, default_args
from tidemark.airflow.operators import ChunkJobOperator
from tidemark.airflow.tasks import BACKFILLED, finish_backfill, publish_chunk, request_backfill
from tidemark.airflow.texts import BACKFILL_PAGE
from tidemark.app import App
from tidemark.spec.ref import COPY_NAME

PIPELINE = "{{ params.pipeline }}{{ '@' ~ params.into if params.into }}"


@task_group(group_id="chunk")
def land_chunk(number: Any) -> None:
    """Ingest -> quality -> publish for one chunk; chunks take turns."""
    chunk = {"pipeline": PIPELINE, "requested_by": REQUESTED_BY, "chunk": number}
    ingested = ChunkJobOperator(
        task_id="ingest",
        job="ingest",
        **chunk,
        # The data table takes the plans of a pipeline's backfills in their order.
        max_active_tis_per_dagrun=1,
        execution_timeout=timedelta(hours=6),
        doc_md="Plans the chunk, or finds its plan, and lands it in one transaction, exactly once.",
    )
    checked = ChunkJobOperator(
        task_id="quality",
        job="quality",
        **chunk,
        max_active_tis_per_dagrun=1,
        execution_timeout=timedelta(hours=2),
        doc_md="Checks what the chunk landed. If it fails, the data stays landed.",
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


with DAG(
    dag_id="tidemark_backfill",
    description="Land offsets by range, by time, or all that Kafka has; or replace what landed",
    doc_md=BACKFILL_PAGE,
    schedule=None,
    start_date=START_DATE,
    catchup=False,
    max_active_runs=1,
    default_args=default_args(retries=3),
    tags=["tidemark", "backfill"],
    params={
        "pipeline": Param(
            type="string",
            enum=list(App.from_environment().specs),
            title="Pipeline",
            description="The pipeline whose table gets the records.",
        ),
        "offsets": Param(
            None,
            type=["null", "string"],
            title="Offset ranges",
            description=(
                "PARTITION:START-END, separated by commas. END is the next offset after the "
                "range, which is not landed itself: 1:0-100 lands the offsets 0 to 99 of "
                "partition 1."
            ),
        ),
        "from": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Time window: from",
            description="Or: from the first record of this moment or later, in each partition,",
        ),
        "until": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="Time window: until",
            description="to the first record of this moment or later, which is not landed itself.",
        ),
        "retained": Param(
            False,
            type="boolean",
            title="The retained log",
            description="Or: all that Kafka has now.",
        ),
        "plan": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="A plan's ranges",
            description=(
                "Or: what the plan of this number was about, as far as it is missing; with "
                "Replace all of it, whichever plan holds its rows now."
            ),
        ),
        "partitions": Param(
            None,
            type=["null", "string"],
            pattern=r"^\s*\d+(\s*,\s*\d+)*\s*$",
            title="Partitions",
            description="Of a time window or the retained log only these, such as 0, 3; else all.",
        ),
        "replace": Param(
            False,
            type="boolean",
            title="Replace",
            description=(
                "Land again what has landed: the new rows take the place of the old ones, each "
                "chunk in one commit. What Kafka has no record for any more is never replaced by "
                "nothing: such a chunk is refused."
            ),
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            title="Reason",
            description="With Replace: why. It is kept in the control table.",
        ),
        "into": Param(
            None,
            type=["null", "string"],
            pattern=f"^{COPY_NAME}$",
            title="Into another table",
            description="Land in the table PIPELINE@NAME instead, which has backfills alone.",
        ),
        "chunk": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Chunk size",
            description="Most offsets of one chunk; limits.records_per_chunk of the spec if empty.",
        ),
        "readable_only": Param(
            False,
            type="boolean",
            title="Only what is left",
            description=(
                "Leave out what Kafka has deleted, instead of refusing the backfill. With Replace "
                "such offsets keep the rows that they have."
            ),
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Only show in the log of `request` what would be done.",
        ),
        "approved": Param(
            False,
            type="boolean",
            title="Approved",
            description="Go ahead although it is above limits.records_per_backfill of the spec.",
        ),
    },
):
    asked = PythonOperator(
        task_id="request",
        python_callable=request_backfill,
        op_kwargs={"pipeline": PIPELINE, "requested_by": REQUESTED_BY},
        execution_timeout=timedelta(minutes=15),
        doc_md="Selects the offsets, shows and records them. Starts no Spark.",
    )
    chunks = land_chunk.expand(number=asked.output)
    finished = PythonOperator(
        task_id="complete",
        python_callable=finish_backfill,
        op_kwargs={"pipeline": PIPELINE, "requested_by": REQUESTED_BY, "chunks": asked.output},
        trigger_rule="all_done",
        execution_timeout=timedelta(minutes=15),
        doc_md="Fails unless every chunk is in the table, whatever became of single tasks.",
    )
    # Not behind `publish`: that a check has failed is for the run to tell.
    # The stubs take an expanded group for one node.
    chunks.children["chunk.ingest"] >> finished  # type: ignore[attr-defined]

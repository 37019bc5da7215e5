"""The DAG that lands an explicit range of offsets of one partition, asked for by a form."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from tidemark.wiring import App
from tidemark_airflow.chain import START_DATE, add_chain, default_args
from tidemark_airflow.tasks import BACKFILLED, plan_backfill, publish_backfill
from tidemark_airflow.texts import BACKFILL_PAGE

with DAG(
    dag_id="tidemark_backfill",
    description="Land an explicit range of offsets",
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
        "partition": Param(
            type="integer",
            minimum=0,
            title="Partition",
            description="Number of the topic's partition, from 0.",
        ),
        "start": Param(
            type="integer",
            minimum=0,
            title="Start offset",
            description="The first offset to land. Not below the low-water mark.",
        ),
        "end": Param(
            type="integer",
            minimum=1,
            title="End offset",
            description=(
                "The next offset after the range, which is not landed itself: "
                "start 0 and end 100 land the offsets 0 to 99. Greater than the start."
            ),
        ),
    },
):
    add_chain(
        plan=plan_backfill,
        arguments={},
        publish=publish_backfill,
        pipeline="{{ params.pipeline }}",
        outlet=BACKFILLED,
    )

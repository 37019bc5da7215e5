"""The four tasks that every Tidemark DAG has, and what its DAGs have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Asset, AssetAlias, BaseOperator, CronDataIntervalTimetable

from tidemark_airflow.operators import TidemarkJobOperator
from tidemark_airflow.tasks import has_left

START_DATE = datetime(2025, 1, 1, tzinfo=UTC)
"""Fixed and past: with `catchup` off, a DAG that is switched on runs once for now."""

REQUESTED_BY = (
    "airflow:{{ dag.dag_id }}:{{ run_id }}"
    # Airflow's backfill may take a run over, with its id.
    "{{ ':by-date' if dag_run.run_type == 'backfill' }}"
)
"""A plan belongs to the run that asked for it; the same run gets the same plan again."""

_PLAN = "{{ ti.xcom_pull(task_ids='plan')['plan'] }}"


def timetable(schedule: str) -> str | CronDataIntervalTimetable:
    """When a DAG runs. Each run knows the time since the one before, which its backfills go by."""
    if schedule in ("@once", "@continuous"):
        return schedule
    return CronDataIntervalTimetable(schedule, timezone="UTC")


def default_args(retries: int) -> dict[str, Any]:
    """Retries for errors that may pass: after half a minute, then twice as long each time."""
    return {
        "owner": "tidemark",
        "retries": retries,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": 2,
        "max_retry_delay": timedelta(minutes=10),
    }


def add_chain(
    *,
    plan: Callable[..., dict[str, Any] | None],
    arguments: Mapping[str, Any],
    publish: Callable[..., None],
    pipeline: str,
    outlet: Asset | AssetAlias,
    catch_up: bool,
) -> None:
    """Add plan -> ingest -> quality -> publish to the DAG of the surrounding block.

    Args:
        plan: Makes the plan; None ends the run without starting Spark.
        arguments: Of `plan`, besides `requested_by`.
        publish: Reports what has landed on `outlet`.
        pipeline: Pipeline name (templated).
        outlet: The asset, or what stands for it until the pipeline is known.
        catch_up: Whether the next run begins at once if this one has left something.
    """
    planned = ShortCircuitOperator(
        task_id="plan",
        python_callable=plan,
        op_kwargs={**arguments, "requested_by": REQUESTED_BY},
        execution_timeout=timedelta(minutes=15),
        doc_md="Decides which offsets this run reads and records them. No Spark.",
    )
    ingested = TidemarkJobOperator(
        task_id="ingest",
        job="ingest",
        pipeline=pipeline,
        plan=_PLAN,
        execution_timeout=timedelta(hours=6),
        doc_md="Lands the plan's offsets in the table, in one transaction, exactly once.",
    )
    checked = TidemarkJobOperator(
        task_id="quality",
        job="quality",
        pipeline=pipeline,
        plan=_PLAN,
        execution_timeout=timedelta(hours=2),
        doc_md="Checks what the plan landed. If it fails, the data stays landed.",
    )
    published = PythonOperator(
        task_id="publish",
        python_callable=publish,
        op_kwargs={"pipeline": pipeline, "plan": _PLAN},
        outlets=[outlet],
        execution_timeout=timedelta(minutes=15),
        doc_md="Reports the table version and the offset ranges as an asset event.",
    )
    planned >> ingested >> checked >> published
    if catch_up:
        published >> _next_run(pipeline)


def _next_run(pipeline: str) -> BaseOperator:
    """More -> again: another run of this DAG, unless nothing is left."""
    more = ShortCircuitOperator(
        task_id="more",
        python_callable=has_left,
        op_kwargs={"pipeline": pipeline, "plan": _PLAN},
        execution_timeout=timedelta(minutes=15),
        doc_md="Looks whether the plan left something behind because of a limit.",
    )
    again = TriggerDagRunOperator(
        task_id="again",
        trigger_dag_id="{{ dag.dag_id }}",
        execution_timeout=timedelta(minutes=15),
        doc_md="Starts the next run, which begins when this one has ended.",
    )
    more >> again
    return more

"""The four tasks that every Tidemark DAG has, and what its DAGs have in common."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, CronDataIntervalTimetable

from tidemark.airflow.alarms import tell_failure
from tidemark.airflow.operators import DecodeOperator, TidemarkJobOperator, UpsertOperator
from tidemark.airflow.tasks import has_left, plan_run, publish_run, table_asset
from tidemark.spec.model import PipelineSpec

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
    """Retries for errors that may pass: after half a minute, then twice as long each time.

    What fails for good is told.
    """
    return {
        "owner": "tidemark",
        "retries": retries,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": 2,
        "max_retry_delay": timedelta(minutes=10),
        "on_failure_callback": tell_failure,
    }


def add_chain(spec: PipelineSpec) -> None:
    """Add a pipeline's plan -> ingest -> quality -> publish to the DAG of the surrounding block."""
    pipeline = spec.name
    planned = ShortCircuitOperator(
        task_id="plan",
        python_callable=plan_run,
        op_kwargs={"pipeline": pipeline, "requested_by": REQUESTED_BY},
        execution_timeout=timedelta(minutes=15),
        # What was landed before is decoded all the same.
        ignore_downstream_trigger_rules=spec.decode is None,
        doc_md="Decides which offsets this run reads and records them. Starts no Spark.",
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
        python_callable=publish_run,
        op_kwargs={"pipeline": pipeline, "plan": _PLAN},
        outlets=[table_asset(pipeline)],
        execution_timeout=timedelta(minutes=15),
        doc_md="Reports the table version and the offset ranges as an asset event.",
    )
    planned >> ingested >> checked >> published
    if spec.decode:
        typed = decode_task([pipeline])
        ingested >> typed
        if spec.decode.upsert:
            # What could be decoded is merged also if a partition has stopped; the run still fails.
            complete = EmptyOperator(
                task_id="complete",
                execution_timeout=timedelta(minutes=1),
                doc_md="Fails with the run if something could not be decoded.",
            )
            typed >> [upsert_task([pipeline], trigger_rule="all_done"), complete]
    if spec.catch_up:
        published >> _next_run(pipeline)


def decode_task(pipelines: list[str], trigger_rule: str = "none_failed") -> BaseOperator:
    """Decode what has landed, also when nothing was left to land."""
    return DecodeOperator(
        task_id="decode",
        pipelines=pipelines,
        trigger_rule=trigger_rule,
        execution_timeout=timedelta(hours=6),
        doc_md="Decodes what has landed into typed tables. Starts no Spark if nothing is left.",
    )


def upsert_task(pipelines: list[str], trigger_rule: str = "none_failed") -> BaseOperator:
    """Merge what has been decoded into upsert tables."""
    return UpsertOperator(
        task_id="upsert",
        pipelines=pipelines,
        trigger_rule=trigger_rule,
        execution_timeout=timedelta(hours=6),
        doc_md="Merges typed rows by key. Starts no Spark if nothing has changed.",
    )


def _next_run(pipeline: str) -> BaseOperator:
    """Add more -> again: another run of this DAG, unless nothing is left."""
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

"""The tasks of a pipeline's DAG, and the settings that all DAGs share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, CronDataIntervalTimetable

from tidemark.airflow.alarms import alarm_on_failure
from tidemark.airflow.operators import DecodeOperator, TidemarkJobOperator, UpsertOperator
from tidemark.airflow.tasks import has_left, plan_run, publish_run, table_asset
from tidemark.spec.model import PipelineSpec

START_DATE = datetime(2025, 1, 1, tzinfo=UTC)
"""A fixed time in the past. With `catchup` off, a DAG that is switched on runs once."""

REQUESTED_BY = (
    "airflow:{{ dag.dag_id }}:{{ run_id }}"
    # Airflow's backfill can take over an existing run, with its id.
    "{{ ':by-date' if dag_run.run_type == 'backfill' }}"
)
"""The requester of a plan. A repeated task of the same run gets the same plan."""

_PLAN = "{{ ti.xcom_pull(task_ids='plan')['plan'] }}"


def timetable(schedule: str) -> str | CronDataIntervalTimetable:
    """Return the timetable of a schedule. Each run has an interval, which backfills by date use."""
    if schedule in ("@once", "@continuous"):
        return schedule
    return CronDataIntervalTimetable(schedule, timezone="UTC")


def default_args(retries: int) -> dict[str, Any]:
    """Return the settings of all tasks: retries after 30 s, 60 s and so on, then an alarm.

    Args:
        retries: Number of retries of a task.
    """
    return {
        "owner": "tidemark",
        "retries": retries,
        "retry_delay": timedelta(seconds=30),
        "retry_exponential_backoff": 2,
        "max_retry_delay": timedelta(minutes=10),
        "on_failure_callback": alarm_on_failure,
    }


def add_chain(spec: PipelineSpec) -> None:
    """Add the tasks of a pipeline to the DAG of the surrounding block."""
    pipeline = spec.name
    planned = ShortCircuitOperator(
        task_id="plan",
        python_callable=plan_run,
        op_kwargs={"pipeline": pipeline, "requested_by": REQUESTED_BY},
        execution_timeout=timedelta(minutes=15),
        # Records that landed earlier are decoded even if nothing was planned.
        ignore_downstream_trigger_rules=spec.decode is None,
        doc_md="Selects and records the offsets that this run reads. Starts no Spark.",
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
        doc_md="Checks the landed rows. If a check fails, the rows stay in the table.",
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
            # Decoded records are merged even if a partition has stopped; the run still fails.
            complete = EmptyOperator(
                task_id="complete",
                execution_timeout=timedelta(minutes=1),
                doc_md="Fails the run if records could not be decoded.",
            )
            typed >> [upsert_task([pipeline], trigger_rule="all_done"), complete]
    if spec.catch_up:
        published >> _next_run(pipeline)


def decode_task(pipelines: list[str], trigger_rule: str = "none_failed") -> BaseOperator:
    """Return the task that decodes landed records, even if this run landed nothing."""
    return DecodeOperator(
        task_id="decode",
        pipelines=pipelines,
        trigger_rule=trigger_rule,
        execution_timeout=timedelta(hours=6),
        doc_md="Decodes landed records into typed tables. Starts no Spark if none are left.",
    )


def upsert_task(pipelines: list[str], trigger_rule: str = "none_failed") -> BaseOperator:
    """Return the task that merges decoded records into upsert tables."""
    return UpsertOperator(
        task_id="upsert",
        pipelines=pipelines,
        trigger_rule=trigger_rule,
        execution_timeout=timedelta(hours=6),
        doc_md="Merges typed rows by key. Starts no Spark if nothing has changed.",
    )


def _next_run(pipeline: str) -> BaseOperator:
    """Add the tasks that start another run of this DAG if a limit left offsets."""
    more = ShortCircuitOperator(
        task_id="more",
        python_callable=has_left,
        op_kwargs={"pipeline": pipeline, "plan": _PLAN},
        execution_timeout=timedelta(minutes=15),
        doc_md="Continues if a limit left offsets of the topic unread.",
    )
    again = TriggerDagRunOperator(
        task_id="again",
        trigger_dag_id="{{ dag.dag_id }}",
        execution_timeout=timedelta(minutes=15),
        doc_md="Starts the next run. It waits until this one has ended.",
    )
    more >> again
    return more

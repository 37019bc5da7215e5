"""The tasks of a DAG of pipelines, and the settings that all DAGs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, CronDataIntervalTimetable

from tidemark.airflow.alarms import alarm_on_failure
from tidemark.airflow.operators import JobOperator
from tidemark.airflow.tasks import (
    EARLIER_PLANS,
    check_run,
    decode_run,
    has_left,
    ingest_run,
    plan_run,
    publish_run,
    table_alias,
    upsert_run,
)
from tidemark.spec.model import PipelineSpec

_GOES_ON = "all_done"
"""Trigger rule of tasks that continue after a task has failed for some pipelines."""

START_DATE = datetime(2025, 1, 1, tzinfo=UTC)
"""A fixed time in the past. With `catchup` off, a DAG that is switched on runs once."""

REQUESTED_BY = (
    "airflow:{{ dag.dag_id }}:{{ run_id }}"
    # Airflow's backfill can take over an existing run, with its id.
    "{{ ':by-date' if dag_run.run_type == 'backfill' }}"
)
"""The requester of a plan. A repeated task of the same run gets the same plan."""


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


def add_chain(dag_id: str, members: Sequence[PipelineSpec]) -> None:
    """Add the tasks of some pipelines to the DAG of the surrounding block.

    A task handles all pipelines. It fails if it fails for one of them, and the next task continues
    with those that can continue. The task `complete` does nothing: it fails a run in which any task
    has failed.
    """
    names = [spec.name for spec in members]
    decoded = [spec.name for spec in members if spec.decode]
    upserted = [spec.name for spec in members if spec.has_upsert]
    run = {"pipelines": names, "requested_by": REQUESTED_BY}
    planned = ShortCircuitOperator(
        task_id="plan",
        python_callable=plan_run,
        op_kwargs=run,
        execution_timeout=timedelta(minutes=15),
        doc_md="Selects and records the offsets that this run reads. Ends the run if there is no "
        "work. Starts no Spark.",
    )
    chain: list[BaseOperator] = [
        planned,
        JobOperator(
            task_id="ingest",
            python_callable=ingest_run,
            op_kwargs=run,
            trigger_rule=_GOES_ON,
            execution_timeout=timedelta(hours=6),
            doc_md="Lands each plan in its table, in one transaction, exactly once.",
        ),
        JobOperator(
            task_id="check",
            python_callable=check_run,
            op_kwargs={**run, "earlier": EARLIER_PLANS},
            trigger_rule=_GOES_ON,
            execution_timeout=timedelta(hours=2),
            doc_md="Checks the landed rows. If a check fails, the rows stay in the table, "
            "unpublished.",
        ),
    ]
    if decoded:
        chain.append(
            JobOperator(
                task_id="decode",
                python_callable=decode_run,
                op_kwargs={"pipelines": decoded},
                trigger_rule=_GOES_ON,
                execution_timeout=timedelta(hours=6),
                doc_md="Decodes published records into typed tables. Starts no Spark if none are "
                "left.",
            )
        )
    if upserted:
        chain.append(
            JobOperator(
                task_id="upsert",
                python_callable=upsert_run,
                op_kwargs={"pipelines": upserted},
                trigger_rule=_GOES_ON,
                execution_timeout=timedelta(hours=6),
                doc_md="Merges typed rows by key. Starts no Spark if nothing has changed.",
            )
        )
    alias = table_alias(dag_id)
    chain.append(
        PythonOperator(
            task_id="publish",
            python_callable=publish_run,
            op_kwargs={**run, "alias": alias.name},
            outlets=[alias],
            trigger_rule=_GOES_ON,
            execution_timeout=timedelta(minutes=15),
            doc_md="Reports new versions of the tables, and the landed ranges, as asset events.",
        )
    )
    for first, second in pairwise(chain):
        first >> second
    complete = EmptyOperator(
        task_id="complete",
        # A skipped task is no failure.
        trigger_rule="none_failed",
        execution_timeout=timedelta(minutes=1),
        doc_md="Fails the run if a task has failed for a pipeline.",
    )
    chain >> complete
    eager = [spec.name for spec in members if spec.catch_up]
    if eager:
        complete >> _next_run({**run, "pipelines": eager})


def _next_run(run: Mapping[str, Any]) -> BaseOperator:
    """Add the tasks that start another run of this DAG if a limit left offsets."""
    more = ShortCircuitOperator(
        task_id="more",
        python_callable=has_left,
        op_kwargs=run,
        execution_timeout=timedelta(minutes=15),
        doc_md="Continues if a limit left offsets of a topic unread.",
    )
    again = TriggerDagRunOperator(
        task_id="again",
        trigger_dag_id="{{ dag.dag_id }}",
        execution_timeout=timedelta(minutes=15),
        doc_md="Starts the next run. It waits until this one has ended.",
    )
    more >> again
    return more

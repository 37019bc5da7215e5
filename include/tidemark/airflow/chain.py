"""The tasks of a DAG of pipelines, and the settings that all DAGs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, CronDataIntervalTimetable, Param

from tidemark.airflow.alarms import alarm_on_failure
from tidemark.airflow.operators import JobOperator, PlanOperator, RunOperator
from tidemark.airflow.tasks import (
    EARLIER_PLANS,
    TABLE_VERSIONS,
    check_run,
    complete_run,
    decode_run,
    has_left,
    ingest_run,
    plan_run,
    publish_run,
    table_alias,
    table_asset,
    upsert_run,
)
from tidemark.app.pipelines import Outcomes
from tidemark.core.origins import BY_DATE, DagRunRequester
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import PipelineKind, PipelineRef

_GOES_ON = "all_done"
"""Trigger rule of tasks that continue after a task has failed for some pipelines."""

REQUESTED_BY = (
    str(DagRunRequester(dag_id="{{ dag.dag_id }}", run_id="{{ run_id }}"))
    + f"{{{{ '{BY_DATE}' if dag_run.run_type == 'backfill' }}}}"
)
"""The requester of a plan. A repeated task of the same run gets the same plan."""


def timetable(schedule: str) -> str | CronDataIntervalTimetable:
    """Return the timetable of a schedule. Each run has an interval, which backfills by date use."""
    if schedule in ("@once", "@continuous"):
        return schedule
    return CronDataIntervalTimetable(schedule, timezone="UTC")


def form_field(title: str, description: str, **schema: Any) -> Param:
    """Return a field of a DAG's form, with its description in Markdown.

    Args:
        title: The label.
        description: The text below the field, in Markdown.
        **schema: The default value, and keywords of JSON Schema.
    """
    return Param(**schema, title=title, description_md=description)


def dag_settings(retries: int) -> dict[str, Any]:
    """Return the settings that all DAGs share.

    A DAG runs once when it is switched on, and one run at a time. A failed task is retried after
    30 s, 60 s and so on, then an alarm is sent.

    Args:
        retries: Number of retries of a task.
    """
    return {
        "start_date": datetime(2025, 1, 1, tzinfo=UTC),
        "catchup": False,
        "max_active_runs": 1,
        "default_args": {
            "owner": "tidemark",
            "retries": retries,
            "retry_delay": timedelta(seconds=30),
            "retry_exponential_backoff": 2,
            "max_retry_delay": timedelta(minutes=10),
            "on_failure_callback": alarm_on_failure,
        },
    }


def add_chain(dag_id: str, members: Sequence[PipelineSpec]) -> None:
    """Add the tasks of some pipelines to the DAG of the surrounding block.

    A task handles all pipelines. It fails if it fails for one of them, and the next task continues
    with those that can continue. The task `complete` fails a run in which any task has failed, or
    in which `publish` could not send the events of every pipeline.
    """
    names = [spec.name for spec in members]
    decoded = [spec.name for spec in members if spec.decode]
    upserted = [spec.name for spec in members if spec.has_upsert]
    run = {"pipelines": names, "requested_by": REQUESTED_BY}
    planned = PlanOperator(
        task_id="plan",
        python_callable=plan_run,
        op_kwargs=run,
        execution_timeout=timedelta(minutes=15),
        doc_md="Selects and records the offsets that this run reads. Ends the run if there is no "
        "work. Starts no Spark.",
    )
    chain: list[BaseOperator] = [
        planned,
        _job(
            ingest_run,
            run,
            "Lands each plan in its table, in one transaction, exactly once.",
            hours=6,
        ),
        _job(
            check_run,
            {**run, "earlier": EARLIER_PLANS},
            "Checks the landed rows. If a check fails, the rows stay in the table, unpublished.",
            hours=2,
        ),
    ]
    if decoded:
        page = "Decodes published records into typed tables. Starts no Spark if none are left."
        chain.append(_job(decode_run, {"pipelines": decoded}, page, hours=6))
    if upserted:
        page = "Merges typed rows by key. Starts no Spark if nothing has changed."
        arguments = {"pipelines": upserted, "versions": TABLE_VERSIONS}
        chain.append(_job(upsert_run, arguments, page, hours=6))
    alias = table_alias(dag_id)
    chain.append(
        RunOperator(
            task_id="publish",
            python_callable=publish_run,
            op_kwargs={**run, "alias": alias.name},
            outlets=[alias],
            # Airflow lists these assets before their first event. As outlets, each run would emit
            # an event of all of them.
            inlets=[table_asset(str(ref)) for spec in members for ref in _tables_of(spec)],
            trigger_rule=_GOES_ON,
            execution_timeout=timedelta(minutes=15),
            doc_md="Reports new versions of the tables, and the landed ranges, as asset events.",
        )
    )
    for first, second in pairwise(chain):
        first >> second
    complete = RunOperator(
        task_id="complete",
        python_callable=complete_run,
        # A skipped task is not a failure.
        trigger_rule="none_failed",
        execution_timeout=timedelta(minutes=1),
        doc_md="Fails the run if a task has failed, or if `publish` could not send the events "
        "of every pipeline.",
    )
    chain >> complete
    publish = chain[-1]
    eager = [spec.name for spec in members if spec.catch_up]
    if eager:
        # A failed pipeline fails `complete`. The other pipelines catch up without `complete`.
        publish >> _next_run({**run, "pipelines": eager})


def _tables_of(spec: PipelineSpec) -> list[PipelineRef]:
    """Return the tables of a pipeline whose new versions are asset events."""
    kinds = [PipelineKind.TYPED] * bool(spec.decode) + [PipelineKind.UPSERT] * spec.has_upsert
    return [spec.ref, *(PipelineRef(spec.name, kind) for kind in kinds)]


def _job(
    function: Callable[..., Outcomes], arguments: Mapping[str, Any], page: str, *, hours: int
) -> JobOperator:
    """Add a task that continues after a task has failed for some pipelines."""
    return JobOperator(
        task_id=function.__name__.removesuffix("_run"),
        python_callable=function,
        op_kwargs=arguments,
        trigger_rule=_GOES_ON,
        execution_timeout=timedelta(hours=hours),
        doc_md=page,
    )


def _next_run(run: Mapping[str, Any]) -> BaseOperator:
    """Add the tasks that start another run of this DAG if a limit left offsets."""
    more = ShortCircuitOperator(
        task_id="more",
        python_callable=has_left,
        op_kwargs=run,
        trigger_rule=_GOES_ON,
        execution_timeout=timedelta(minutes=15),
        doc_md="Continues if a limit left unread offsets of a pipeline whose plan is published, "
        "decoded and merged.",
    )
    again = TriggerDagRunOperator(
        task_id="again",
        trigger_dag_id="{{ dag.dag_id }}",
        execution_timeout=timedelta(minutes=15),
        doc_md="Starts the next run. It waits until this one has ended.",
    )
    more >> again
    return more

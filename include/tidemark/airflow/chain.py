"""The tasks of a DAG of pipelines, and the settings that all DAGs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, CronDataIntervalTimetable, Param

from tidemark.airflow import tasks
from tidemark.airflow.alarms import alarm_on_failure
from tidemark.airflow.operators import JobOperator, PlanOperator, RunOperator
from tidemark.app.steps import STEPS
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

_RUN = {"requested_by": REQUESTED_BY}
_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Mapping[str, str]]] = {
    "plan": (tasks.plan_run, _RUN),
    "ingest": (tasks.ingest_run, _RUN),
    "check": (tasks.check_run, {**_RUN, "earlier": tasks.EARLIER_PLANS}),
    "decode": (tasks.decode_run, {}),
    "upsert": (tasks.upsert_run, {"versions": tasks.TABLE_VERSIONS}),
    "publish": (tasks.publish_run, _RUN),
}
"""The function of each step's task, with its arguments other than the pipelines."""


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
    chain = [_task(dag_id, name, members) for name in STEPS if _having(name, members)]
    for first, second in pairwise(chain):
        first >> second
    complete = RunOperator(
        task_id="complete",
        python_callable=tasks.complete_run,
        # A skipped task is not a failure.
        trigger_rule="none_failed",
        execution_timeout=timedelta(minutes=1),
        doc_md="Fails the run if a task has failed, or if `publish` could not send the events "
        "of every pipeline.",
    )
    chain >> complete
    eager = [spec.name for spec in members if spec.catch_up]
    if eager:
        # A failed pipeline fails `complete`. The other pipelines catch up without `complete`.
        chain[-1] >> _next_run({"pipelines": eager, **_RUN})


def _having(step: str, members: Iterable[PipelineSpec]) -> list[str]:
    """Return the pipelines that have a step."""
    return [spec.name for spec in members if STEPS[step].has(spec)]


def _task(dag_id: str, name: str, members: Sequence[PipelineSpec]) -> BaseOperator:
    """Add the task of a step."""
    step, (function, arguments) = STEPS[name], _FUNCTIONS[name]
    settings: dict[str, Any] = {
        "task_id": name,
        "python_callable": function,
        "op_kwargs": {"pipelines": _having(name, members), **arguments},
        "execution_timeout": step.timeout,
        "doc_md": step.page,
    }
    if name == "plan":
        return PlanOperator(**settings)
    settings["trigger_rule"] = _GOES_ON
    if step.needs_spark:
        return JobOperator(**settings)
    alias = tasks.table_alias(dag_id)
    settings["op_kwargs"]["alias"] = alias.name
    # Airflow lists inlets before their first event. If the tables were outlets, each run would emit
    # an event of every table.
    inlets = [tasks.table_asset(str(ref)) for spec in members for ref in _tables_of(spec)]
    return RunOperator(**settings, outlets=[alias], inlets=inlets)


def _tables_of(spec: PipelineSpec) -> list[PipelineRef]:
    """Return the tables of a pipeline whose new versions are asset events."""
    kinds = [PipelineKind.TYPED] * bool(spec.decode) + [PipelineKind.UPSERT] * spec.has_upsert
    return [spec.ref, *(PipelineRef(spec.name, kind) for kind in kinds)]


def _next_run(run: Mapping[str, Any]) -> BaseOperator:
    """Add the tasks that start another run of this DAG if a limit left offsets."""
    more = ShortCircuitOperator(
        task_id="more",
        python_callable=tasks.has_left,
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

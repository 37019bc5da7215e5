"""The tasks of a group's DAG: each task handles all pipelines of the group.

A task reads its plans from the control table by the requester, which is the run. It continues with
the pipelines that can continue, whatever happened to the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.sdk import AssetAlias
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.airflow.chain import REQUESTED_BY, decode_task, upsert_task
from tidemark.airflow.connections import checked_engine, connected_app
from tidemark.airflow.failures import airflow_failures, pipelines_failure
from tidemark.airflow.operators import JobOperator
from tidemark.airflow.tasks import is_published, landed, plan_of_run, table_asset, window_of
from tidemark.app import App
from tidemark.core.errors import TidemarkError
from tidemark.core.plan import PlanRef
from tidemark.ingest.parallel import PLANNING_THREADS, map_in_threads

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol as DagRun

log = logging.getLogger(__name__)

_GOES_ON = "all_done"
"""Trigger rule of tasks that continue after a task has failed for some pipelines."""


def group_alias(group: str) -> AssetAlias:
    """Return the alias of the assets of the tables that a run writes."""
    return AssetAlias(f"tidemark_group_{group}", group="tidemark")


def plan_group(group: str, requested_by: str, dag_run: DagRun) -> bool:
    """Plan each pipeline of the group, or find the recorded plans of this run.

    Returns:
        Whether a pipeline has a plan.

    Raises:
        AirflowException: Pipelines were refused. The others have been planned before.
    """
    with airflow_failures():
        members = [spec.name for spec in App.from_environment().group(group)]
        app = connected_app(*members)
        checked_engine(*members)
    errors: dict[str, TidemarkError] = {}
    planned = []
    window = window_of(dag_run)
    answers = map_in_threads(
        members, lambda name: plan_of_run(app, name, requested_by, window), PLANNING_THREADS
    )
    for pipeline, answer in zip(members, answers, strict=True):
        if isinstance(answer, TidemarkError):
            errors[pipeline] = answer
            continue
        log.info("pipeline=%s outcome=%s", pipeline, answer.outcome)
        if answer.plan:
            adds = app.pipeline(answer.plan.pipeline).size_estimate(answer.plan)
            log.info("%s\n%s", answer.plan.explain(), adds.explain())
            planned.append(answer.plan.ref)
    if errors:
        raise pipelines_failure(errors)
    return bool(planned)


def publish_group(group: str, requested_by: str, outlet_events: Any) -> None:
    """Emit an asset event for each published plan of the run."""
    with airflow_failures():
        _, plans = _plans_of_run(group, requested_by)
        shown = [plan for plan in plans if is_published(plan.pipeline, plan.sequence)]
        for plan in shown:
            outlet_events[group_alias(group)].add(
                table_asset(plan.pipeline), extra=landed(plan.pipeline, plan.sequence)
            )
        if not shown:
            raise AirflowSkipException("this run has no plan that landed and is published")


class GroupJobOperator(JobOperator):
    """Submits one job for the plans of one run of a group.

    Args:
        job: `ingest` for open plans, or `quality` for landed plans.
        group: Name of the group.
        requested_by: The run (templated).
    """

    template_fields: Sequence[str] = ("group", "requested_by")

    def __init__(self, *, job: str, group: str, requested_by: str, **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)
        self.group = group
        self.requested_by = requested_by

    def plans(self) -> list[PlanRef]:
        """Return the plans of the run for the job.

        Raises:
            AirflowSkipException: The run has no plan for the job.
        """
        unlanded, done = _plans_of_run(self.group, self.requested_by)
        plans = done if self.job == "quality" else unlanded
        log.info("landed_before=%s", ", ".join(map(str, done)) or "none")
        if not plans and (self.job == "quality" or not done):
            raise AirflowSkipException("this run has no plan for this task")
        return plans


def _plans_of_run(group: str, requested_by: str) -> tuple[list[PlanRef], list[PlanRef]]:
    """Return the open plans and the landed plans of a run."""
    from tidemark.ingest.recorder import recorded_plan

    app = App.from_environment()
    control = app.control
    asked = {
        spec.name: control.summary(spec.name).plan_requested_by(requested_by)
        for spec in app.group(group)
    }
    records = [
        recorded_plan(control, pipeline, number)
        for pipeline, number in asked.items()
        if number is not None
    ]
    return (
        [record.plan.ref for record in records if record.held_now is None],
        [record.plan.ref for record in records if record.held_now is not None],
    )


def add_group_chain(group: str) -> None:
    """Add the tasks of a group to the DAG of the surrounding block.

    A task fails if it fails for one pipeline, and the next task continues with the others. The task
    `complete` does nothing: it fails a run in which any task has failed.
    """
    run = {"group": group, "requested_by": REQUESTED_BY}
    typed_tables = {
        spec.name: spec.decode for spec in App.from_environment().group(group) if spec.decode
    }
    decoded = list(typed_tables)
    upserted = [name for name, decode in typed_tables.items() if decode.upsert]
    planned = ShortCircuitOperator(
        task_id="plan",
        python_callable=plan_group,
        op_kwargs=run,
        # Records that landed earlier are decoded even if nothing was planned.
        ignore_downstream_trigger_rules=not decoded,
        execution_timeout=timedelta(minutes=15),
        doc_md="Selects and records the offsets of each topic that this run reads. "
        "Starts no Spark.",
    )
    ingested = GroupJobOperator(
        task_id="ingest",
        job="ingest",
        **run,
        trigger_rule=_GOES_ON,
        execution_timeout=timedelta(hours=6),
        doc_md="Lands each plan in its table, in one transaction, exactly once.",
    )
    checked = GroupJobOperator(
        task_id="quality",
        job="quality",
        **run,
        trigger_rule=_GOES_ON,
        execution_timeout=timedelta(hours=2),
        doc_md="Checks the rows of each plan. If a check fails, the rows stay in the table.",
    )
    published = PythonOperator(
        task_id="publish",
        python_callable=publish_group,
        op_kwargs=run,
        outlets=[group_alias(group)],
        trigger_rule=_GOES_ON,
        execution_timeout=timedelta(minutes=15),
        doc_md="Emits an asset event for each published plan.",
    )
    complete = EmptyOperator(
        task_id="complete",
        execution_timeout=timedelta(minutes=1),
        doc_md="Fails the run if a task has failed for a pipeline.",
    )
    planned >> ingested >> checked >> published
    [planned, ingested, checked, published] >> complete
    if decoded:
        typed = decode_task(decoded, trigger_rule=_GOES_ON)
        ingested >> typed >> complete
        if upserted:
            typed >> upsert_task(upserted, trigger_rule=_GOES_ON) >> complete

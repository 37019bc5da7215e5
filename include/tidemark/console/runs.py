"""The page of a DAG run: the plans that the run requested, or the chunks of its backfill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated
from urllib.parse import quote

from fastapi import Query
from starlette.exceptions import HTTPException

from tidemark.app.pipeline import Pipeline
from tidemark.bronze.backfill.service import recorded_request
from tidemark.console.backfills import RecordedBackfill, recorded_backfill
from tidemark.console.context import Page, PageContext
from tidemark.console.guard import AirflowRun
from tidemark.console.observer import STATUS_WAIT_S
from tidemark.console.plan_details import PlanDetails, plan_details
from tidemark.core.errors import TidemarkError
from tidemark.core.origins import DagRunRequester, PlanOrigin, RunOrigin
from tidemark.core.parallel import PLANNING_THREADS, map_in_threads
from tidemark.spec.errors import UnknownPipeline

BACKFILL_DAG = "tidemark_backfill"
"""The DAG whose form requests backfills."""
RANGES = 20
"""Ranges of a plan on the page; the page of the plan has all."""


def origins_of(dag_id: str, run_id: str) -> Sequence[RunOrigin]:
    """Return the origins of the plans of a run: of the run itself, and of `airflow backfill`.

    The template `REQUESTED_BY` of the DAGs creates the same texts.
    """
    runs = (DagRunRequester(dag_id=dag_id, run_id=run_id, by_date=each) for each in (False, True))
    return [RunOrigin(str(run)) for run in runs]


def run_of(origin: PlanOrigin) -> DagRunRequester | None:
    """Return the DAG run that requested a plan; None for other requesters."""
    return DagRunRequester.parse(origin.requester)


def page(
    context: PageContext,
    dag_id: str,
    run_id: str,
    pipeline: Annotated[str | None, Query(max_length=200)] = None,
) -> Page:
    """The plans that a DAG run requested; for the DAG of backfills, the request and its chunks.

    Args:
        context: The request.
        dag_id: The DAG.
        run_id: The run.
        pipeline: Table of a backfill; used without access to the run in Airflow.
    """
    run = context.viewer.airflow_run(dag_id, run_id)

    def task_link(task_id: str, index: int | None = None) -> str | None:
        if context.airflow is None:
            return None
        mapped = () if index is None else ("mapped", str(index))
        parts = ("dags", dag_id, "runs", run_id, "tasks", task_id, *mapped)
        return "/".join([context.airflow, *(quote(part, safe="") for part in parts)])

    common = {
        "dag_id": dag_id,
        "run_id": run_id,
        "run": run,
        "task_link": task_link,
        "paused": context.viewer.paused_dags([dag_id]) if run else (),
    }
    if dag_id == BACKFILL_DAG:
        name = _table(run) or pipeline
        requester = str(DagRunRequester(dag_id=dag_id, run_id=run_id))
        table = _visible(context, name) if name else None
        backfill = _backfill(table, requester) if table else None
        return context.page(
            "backfill_run.html",
            name=name if backfill else None,
            table=name,
            is_visible=table is not None,
            backfill=backfill,
            chunk_tasks=_chunk_tasks(run),
            **common,
        )
    names = list(context.specs_of_dag(dag_id))
    if not names:
        raise HTTPException(404, "This DAG has no pipeline that you may see.")
    found = map_in_threads(
        names, lambda each: _plans(context, each, dag_id, run_id), PLANNING_THREADS
    )
    by_name = dict(zip(names, found, strict=True))
    plans = [plan for each in found if not isinstance(each, TidemarkError) for plan in each]
    without = [name for name, each in by_name.items() if each == []]
    statuses = context.home.statuses
    return context.page(
        "run.html",
        plans=sorted(plans, key=lambda plan: not plan.needs_attention),
        without=without,
        observed=statuses.current(without, STATUS_WAIT_S) if _planning_failed(run) else {},
        errors={name: each for name, each in by_name.items() if isinstance(each, TidemarkError)},
        most=RANGES,
        run_of=run_of,
        **common,
    )


def _planning_failed(run: AirflowRun | None) -> bool:
    """Return whether the newest attempt to plan failed."""
    failed = ("failed", "upstream_failed", "up_for_retry")
    return run is not None and run.tasks.get("plan") in failed


def _plans(context: PageContext, name: str, dag_id: str, run_id: str) -> list[PlanDetails]:
    """Return the plans of a pipeline that a run requested, newest first."""
    pipeline = context.pipeline(name)
    origins = origins_of(dag_id, run_id)
    found = [each for origin in origins for each in pipeline.control.plans_of(name, origin)]
    numbers = {record.plan.sequence for record in found}
    plans = []
    for number in sorted(numbers, reverse=True):
        (entry,) = context.home.plans(name, number + 1, 1)
        plans.append(plan_details(context, pipeline, entry))
    return plans


def _visible(context: PageContext, name: str) -> Pipeline | None:
    """Return a table; None if there is none, or if the viewer may not see it."""
    try:
        return context.pipeline(name)
    except UnknownPipeline:
        return None


def _backfill(table: Pipeline, requester: str) -> RecordedBackfill | None:
    """Return the recorded backfill of a run; None before its request."""
    request = recorded_request(table.control, table.name, requester)
    return recorded_backfill(table, request) if request else None


def _table(run: AirflowRun | None) -> str | None:
    """Return the table that the form of a run selects; None if it is unknown."""
    chosen = run.conf.get("pipeline") if run else None
    return str(chosen) if chosen else None


def _chunk_tasks(run: AirflowRun | None) -> Mapping[int, Sequence[tuple[str, str]]]:
    """Return the tasks that failed or have not ended, with their states, by number of the chunk."""
    found: dict[int, list[tuple[str, str]]] = {}
    for (task, index), state in sorted(run.mapped.items() if run else ()):
        # The first chunk has number 1.
        found.setdefault(index + 1, []).append((task, state))
    return found

"""What the Python tasks do. Heavy libraries load inside the calls, after Airflow's fork."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias

from tidemark.core.plan import Plan
from tidemark.errors import InvalidRange, PlanNotLanded
from tidemark.wiring import App
from tidemark_airflow.connections import connected_app
from tidemark_airflow.failures import airflow_failures

log = logging.getLogger(__name__)

BACKFILLED = AssetAlias("tidemark_backfilled", group="tidemark")
"""Stands for the table that a backfill turns out to write."""


def table_asset(pipeline: str) -> Asset:
    """The pipeline's data table, as Airflow names it. Schemes of one's own begin with `x-`."""
    return Asset(
        name=f"tidemark_{pipeline}", uri=f"x-tidemark://bronze/{pipeline}", group="tidemark"
    )


def plan_run(pipeline: str, requested_by: str) -> dict[str, Any] | None:
    """Plan what is unread, or find the plan that this run has; None ends the run here."""
    with airflow_failures():
        planned = connected_app(pipeline).planner(pipeline).plan(requested_by=requested_by)
        return _handed_on(planned.outcome, planned.plan)


def plan_backfill(params: Mapping[str, Any], requested_by: str) -> dict[str, Any] | None:
    """Plan what is missing of the range in the form; None ends the run here."""
    from tidemark.services.planner import BackfillRequest

    with airflow_failures():
        pipeline = str(params["pipeline"])
        request = BackfillRequest(
            partition=params["partition"], start=params["start"], end=params["end"]
        )
        app = connected_app(pipeline)
        if request.end <= request.start:
            raise InvalidRange(
                topic=app.spec(pipeline).topic,
                partition=request.partition,
                start=request.start,
                end=request.end,
                rule="start < end; the end is the next offset after the range",
            )
        planned = app.planner(pipeline).backfill(request, requested_by=requested_by)
        return _handed_on(planned.outcome, planned.plan)


def publish_run(pipeline: str, plan: str, outlet_events: Any) -> None:
    """Report what a scheduled run has landed on its pipeline's asset."""
    with airflow_failures():
        outlet_events[table_asset(pipeline)].extra = landed(pipeline, int(plan))


def publish_backfill(pipeline: str, plan: str, outlet_events: Any) -> None:
    """Report what a backfill has landed on the asset of the pipeline it was for."""
    with airflow_failures():
        outlet_events[BACKFILLED].add(table_asset(pipeline), extra=landed(pipeline, int(plan)))


def landed(pipeline: str, sequence: int) -> dict[str, Any]:
    """A landed plan as the control table has it.

    Raises:
        UnknownPlan, PlanNotLanded
    """
    from tidemark.services.recording import recorded_plan

    app = App.from_environment()
    record = recorded_plan(app.control(), pipeline, sequence)
    if record.landing is None:
        raise PlanNotLanded(pipeline=pipeline, sequence=sequence)
    landed = {
        "pipeline": pipeline,
        "plan": sequence,
        "kind": record.plan.kind.value,
        "table": app.layout.data_table(app.spec(pipeline).target),
        "table_version": record.landing.table_version,
        "records": record.landing.records,
        "ranges": [[r.partition, r.start, r.end] for r in record.plan.ranges],
    }
    log.info("published %s", " ".join(f"{key}={value}" for key, value in landed.items()))
    return landed


def _handed_on(outcome: str, plan: Plan | None) -> dict[str, Any] | None:
    """What travels to the next tasks: a name and a number. Ranges stay in the control table."""
    if plan is None:
        log.info("nothing to do: everything is landed or planned already")
        return None
    log.info("plan outcome=%s\n%s", outcome, plan.explain())
    return {"pipeline": plan.pipeline, "plan": plan.sequence}

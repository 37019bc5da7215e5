"""Callables of Python tasks. They import heavy libraries after Airflow's fork."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.airflow.connections import checked_engine, connected_app
from tidemark.airflow.failures import airflow_failures
from tidemark.app import App
from tidemark.repair.errors import PlanNotLanded

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol as DagRun

    from tidemark.backfill.selection import TimeWindow
    from tidemark.ingest.planner import PlanResult

log = logging.getLogger(__name__)

BACKFILLED = AssetAlias("tidemark_backfilled", group="tidemark")
"""Alias of the asset of the table that a backfill writes."""


def table_asset(pipeline: str) -> Asset:
    """Return the asset of a pipeline's data table. Custom URI schemes begin with `x-`."""
    return Asset(
        name=f"tidemark_{pipeline}", uri=f"x-tidemark://bronze/{pipeline}", group="tidemark"
    )


def plan_run(pipeline: str, requested_by: str, dag_run: DagRun) -> dict[str, Any] | None:
    """Plan this run, or find its recorded plan; None ends the run."""
    with airflow_failures():
        app = connected_app(pipeline)
        checked_engine(pipeline)
        made = plan_of_run(app, pipeline, requested_by, window_of(dag_run))
        if made.plan is None:
            log.info("nothing to do: all readable offsets are landed or planned")
            return None
        adds = app.pipeline(made.plan.pipeline).size_estimate(made.plan)
        log.info("plan outcome=%s\n%s\n%s", made.outcome, made.plan.explain(), adds.explain())
        # The next tasks receive a name and a number. Ranges stay in the control table.
        return {"pipeline": made.plan.pipeline, "plan": made.plan.sequence}


def window_of(dag_run: DagRun) -> TimeWindow | None:
    """Return the interval of a run of `airflow backfill create`; None for other runs."""
    from tidemark.backfill.selection import TimeWindow

    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    if dag_run.run_type != "backfill" or start is None or end is None or start >= end:
        return None
    return TimeWindow(start=start, end=end)


def plan_of_run(
    app: App, pipeline: str, requested_by: str, window: TimeWindow | None
) -> PlanResult:
    """Plan unread offsets, or the missing offsets of a time window."""
    if window is None:
        return app.pipeline(pipeline).planner.plan(requested_by)
    return app.pipeline(pipeline).backfills.plan_whole(window, requested_by)


def request_backfill(pipeline: str, requested_by: str, params: Mapping[str, Any]) -> list[int]:
    """Record the offsets that a form selects, or find the recorded request of this run.

    Returns:
        The numbers of the chunks; none if all offsets have landed, or for a dry run.
    """
    from tidemark.backfill.selection import select

    with airflow_failures():
        selection = select(
            offsets=_split(params["offsets"]),
            start=params["from"],
            end=params["until"],
            retained=params["retained"],
            plan=params["plan"],
            plan_of=params["pipeline"] if params["into"] else None,
            partitions=[int(partition) for partition in _split(params["partitions"])],
        )
        backfills = connected_app(pipeline).pipeline(pipeline).backfills
        count = backfills.chunk_count(requested_by)
        if count is not None:
            log.info("this run has recorded its request before")
        else:
            seen = backfills.preview(
                selection,
                params["chunk"],
                readable_only=params["readable_only"],
                replaces=params["replace"],
            )
            log.info("preview\n%s", seen.explain())
            if params["dry_run"]:
                return []
            checked_engine(pipeline)
            count = backfills.request(
                seen, requested_by, approved=params["approved"], reason=params["reason"]
            )
        return list(range(1, count + 1))


def finish_backfill(pipeline: str, requested_by: str, chunks: list[int] | None) -> None:
    """Fail unless all requested offsets are in the table."""
    from tidemark.backfill.service import check_finished

    with airflow_failures():
        if chunks is None:
            raise AirflowFailException("no request was recorded: see the task `request`")
        if chunks:
            progress = connected_app(pipeline).pipeline(pipeline).backfills.progress(requested_by)
            check_finished(pipeline, requested_by, progress)


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").replace("\n", ",").split(",") if part.strip()]


def has_left(pipeline: str, plan: str) -> bool:
    """Return whether a limit left offsets out of a plan."""
    from tidemark.ingest.recorder import recorded_plan

    with airflow_failures():
        left = recorded_plan(App.from_environment().control, pipeline, int(plan)).plan.left
        log.info("left=%d", left)
        return left > 0


def publish_run(pipeline: str, plan: str, outlet_events: Any) -> None:
    """Emit an asset event for the landed plan of a run if the plan is published."""
    with airflow_failures():
        _skip_unpublished(pipeline, int(plan))
        outlet_events[table_asset(pipeline)].extra = landed(pipeline, int(plan))


def publish_chunk(pipeline: str, requested_by: str, chunk: int, outlet_events: Any) -> None:
    """Emit an asset event for the landed plan of a chunk if the plan is published."""
    with airflow_failures():
        plan = plan_of_chunk(pipeline, requested_by, chunk)
        if plan is not None:
            _skip_unpublished(pipeline, plan)
            outlet_events[BACKFILLED].add(table_asset(pipeline), extra=landed(pipeline, plan))


def is_published(pipeline: str, sequence: int) -> bool:
    """Return whether the published view shows all rows of a landed plan, and log it if not."""
    publication = App.from_environment().pipeline(pipeline).publication.of(sequence)
    if not publication.is_published:
        status = publication.decision.status if publication.decision else "not checked"
        log.warning("not published pipeline=%s plan=%d status=%s", pipeline, sequence, status)
    return publication.is_published


def _skip_unpublished(pipeline: str, sequence: int) -> None:
    if not is_published(pipeline, sequence):
        raise AirflowSkipException(f"plan {sequence} of {pipeline} is not published")


def plan_of_chunk(pipeline: str, requested_by: str, chunk: int) -> int | None:
    """Return the newest plan of a chunk of a backfill; None without a plan."""
    from tidemark.backfill.selection import chunk_requester

    ledger = App.from_environment().control.summary(pipeline)
    return ledger.plan_requested_by(chunk_requester(requested_by, chunk))


def landed(pipeline: str, sequence: int) -> dict[str, Any]:
    """Return the extra data of the asset event of a landed plan.

    Raises:
        UnknownPlan, PlanNotLanded
    """
    from tidemark.ingest.recorder import recorded_plan

    app = App.from_environment()
    record = recorded_plan(app.control, pipeline, sequence)
    if record.held_now is None or record.landed_originally is None:
        raise PlanNotLanded(pipeline=pipeline, sequence=sequence)
    landed = {
        "pipeline": pipeline,
        "plan": sequence,
        "kind": record.plan.kind.value,
        "table": app.layout.data_table(app.spec(pipeline).target),
        "table_version": record.landed_originally.table_version,
        "records": record.landed_originally.records,
        "replaces": record.plan.replaces,
        "ranges": [[r.partition, r.start, r.end] for r in record.plan.ranges],
    }
    log.info("published %s", " ".join(f"{key}={value}" for key, value in landed.items()))
    return landed

"""Functions of the tasks of a backfill. They import heavy libraries after Airflow's fork."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.airflow.connections import check_connections, checked_engine
from tidemark.airflow.operators import with_app
from tidemark.airflow.tasks import is_replaced, plan_event, plans_of_origin, table_asset
from tidemark.app.app import App
from tidemark.app.pipelines import Outcomes
from tidemark.core.origins import ChunkOrigin
from tidemark.core.texts import listed

if TYPE_CHECKING:
    from tidemark.airflow.operators import JobOperator
    from tidemark.core.ledger import PlanRecord
    from tidemark.core.plan import Plan

log = logging.getLogger(__name__)

BACKFILLED = AssetAlias("tidemark_backfilled", group="tidemark")
"""Alias of the asset of the table that a backfill writes."""


@with_app
def request_backfill(
    app: App, pipeline: str, requested_by: str, params: Mapping[str, Any]
) -> list[int]:
    """Record the offsets that a form selects, or find the recorded request of this run.

    Returns:
        The numbers of the chunks; none if all offsets have landed, or for a dry run.
    """
    from tidemark.bronze.backfill.selection import SelectBy, select, split_list
    from tidemark.bronze.backfill.service import recorded_request

    # A cleared run continues its recorded request, regardless of the form.
    recorded = recorded_request(app.control, pipeline, requested_by)
    if recorded:
        count = len(recorded.chunks)
        log.info("request recorded before pipeline=%s requested_by=%s", pipeline, requested_by)
    else:
        by = SelectBy(params["select_by"])
        selection = select(
            by=by,
            offsets=split_list(params["offsets"]),
            start=params["from"],
            end=params["until"],
            retained=by is SelectBy.RETAINED,
            plan=params["plan"],
            partitions=[int(partition) for partition in split_list(params["partitions"])],
        )
        check_connections(app, [pipeline])
        backfills = app.pipeline(pipeline).backfills
        preview = backfills.preview(
            selection,
            params["chunk"],
            readable_only=bool(params["readable_only"]),
            replaces=bool(params["replace"]),
        )
        log.info("preview pipeline=%s\n%s", pipeline, preview.explain())
        if params["dry_run"]:
            return []
        checked_engine(app, [pipeline])
        count = backfills.request(
            preview, requested_by, approved=bool(params["approved"]), reason=params["reason"]
        )
    return list(range(1, count + 1))


def ingest_chunk(spark: JobOperator, pipeline: str, requested_by: str, chunk: int) -> Outcomes:
    """Land one chunk, or skip the task if all offsets of the chunk are landed or planned."""
    outcomes, refusal = spark.on(pipeline).land_chunk(requested_by, chunk, _log_plan)
    if refusal:
        raise refusal
    if not outcomes.records:
        raise _nothing_left(chunk)
    return outcomes


def check_chunk(spark: JobOperator, pipeline: str, requested_by: str, chunk: int) -> Outcomes:
    """Check the plans of a chunk; skips the task without a plan. Plans nothing."""
    found = _plans_of_chunk(spark.app, pipeline, requested_by, chunk)
    plans = [each for each in found if not is_replaced(each)]
    if not plans:
        raise _nothing_left(chunk)
    for each in plans:
        _log_plan(chunk, each.plan)
    return spark.on(pipeline).execute("check", [each.plan.ref for each in plans])


def _nothing_left(chunk: int) -> AirflowSkipException:
    return AirflowSkipException(f"no offset of chunk {chunk} is left")


def _log_plan(chunk: int, plan: Plan) -> None:
    log.info(
        "plan of the chunk pipeline=%s plan=%d chunk=%d\n%s",
        *(plan.pipeline, plan.sequence, chunk, plan.explain()),
    )


@with_app
def publish_chunk(
    app: App, pipeline: str, requested_by: str, chunk: int, outlet_events: Any
) -> None:
    """Emit an asset event for each landed plan of a chunk that is published."""
    plans = _plans_of_chunk(app, pipeline, requested_by, chunk)
    events = [event for each in plans if (event := plan_event(app, each)) is not None]
    for event in events:
        outlet_events[BACKFILLED].add(table_asset(pipeline), extra=event)
    if plans and not events:
        numbers = listed("plan", [each.plan.sequence for each in plans])
        raise AirflowSkipException(f"{numbers} of {pipeline}: not published")


def _plans_of_chunk(app: App, pipeline: str, requested_by: str, chunk: int) -> list[PlanRecord]:
    """Return the plans of a chunk of a backfill as `plans_of_origin` does."""
    origin = ChunkOrigin(requested_by, chunk)
    return plans_of_origin(app.control, pipeline, origin)


@with_app
def finish_backfill(app: App, pipeline: str, requested_by: str, chunks: list[int] | None) -> None:
    """Fail unless all requested offsets are in the table."""
    from tidemark.bronze.backfill.service import check_finished

    if chunks is None:
        raise AirflowFailException("no request was recorded: see the task `request`")
    if chunks:
        progress = app.pipeline(pipeline).backfills.progress(requested_by)
        check_finished(pipeline, requested_by, progress)

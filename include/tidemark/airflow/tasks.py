"""Functions of the tasks of a pipeline's run. They import heavy libraries after Airflow's fork.

Each task handles all pipelines of its DAG. It finds their plans in the control table by the
requester, which is the run, and continues with the pipelines that can continue.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.airflow.connections import checked_engine, connected_app
from tidemark.airflow.failures import airflow_failures, raise_failed
from tidemark.app import App
from tidemark.core.errors import TidemarkError
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import PlanRef
from tidemark.pipelines import Outcomes, for_each, plan_each
from tidemark.repair.errors import PlanNotLanded
from tidemark.spec.ref import PipelineKind, PipelineRef
from tidemark.steps import left

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol as DagRun
    from airflow.sdk.types import RuntimeTaskInstanceProtocol as TaskInstance

    from tidemark.airflow.operators import SparkTask
    from tidemark.backfill.selection import TimeWindow
    from tidemark.ingest.planner import PlanResult
    from tidemark.pipeline import Pipeline

log = logging.getLogger(__name__)

_VERSIONS = "versions"
"""XCom key of the versions that typed tables and upsert tables had when the run was planned."""


def table_asset(table: str) -> Asset:
    """Return the asset of a table. Custom URI schemes begin with `x-`.

    Args:
        table: Text of a `PipelineRef`.
    """
    ref = PipelineRef.parse(table)
    if ref.kind in (PipelineKind.TYPED, PipelineKind.UPSERT):
        kind = ref.kind.value
        name, uri = f"tidemark_{ref.name}_{kind}", f"x-tidemark://{kind}/{ref.name}"
    else:
        name, uri = f"tidemark_{table}", f"x-tidemark://bronze/{table}"
    return Asset(name=name, uri=uri, group="tidemark")


def table_alias(dag_id: str) -> AssetAlias:
    """Return the alias of the assets of the tables that the runs of a DAG write."""
    return AssetAlias(f"{dag_id}_tables", group="tidemark")


# -- plan ----------------------------------------------------------------------------------------


def plan_run(
    pipelines: Sequence[str], requested_by: str, dag_run: DagRun, ti: TaskInstance
) -> bool:
    """Plan each pipeline, or find the recorded plans of this run.

    Returns:
        Whether the run has work: a plan, or what an earlier run did not finish.

    Raises:
        AirflowException: Pipelines were refused. The others have been planned before.
    """
    with airflow_failures():
        app = connected_app(*pipelines)
        checked_engine(*pipelines)
        ti.xcom_push(_VERSIONS, _versions(app, pipelines))
        window = _window_of(dag_run)
        plans, outcomes = plan_each(
            app, pipelines, lambda each: _plan_of_run(each, requested_by, window), log.info
        )
        for plan in plans:
            adds = app.pipeline(plan.pipeline).size_estimate(plan)
            log.info("%s\n%s", plan.explain(), adds.explain())
    raise_failed(outcomes)
    return bool(plans) or _has_backlog(app, pipelines)


def _has_backlog(app: App, pipelines: Sequence[str]) -> bool:
    """Return whether plans wait for a check, or records for a decode or a merge.

    An error counts as work: the task that does the work raises it again.
    """
    found = for_each(app, pipelines, lambda each: left(app, each.name)).values()
    return any(isinstance(each, TidemarkError) or each.is_any for each in found)


def _plan_of_run(pipeline: Pipeline, requested_by: str, window: TimeWindow | None) -> PlanResult:
    """Plan unread offsets, or the missing offsets of a time window."""
    if window is None:
        return pipeline.plan(requested_by)
    return pipeline.backfills.plan_whole(window, requested_by)


def _window_of(dag_run: DagRun) -> TimeWindow | None:
    """Return the interval of a run of `airflow backfill create`; None for other runs."""
    from tidemark.backfill.selection import TimeWindow

    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    if dag_run.run_type != "backfill" or start is None or end is None or start >= end:
        return None
    return TimeWindow(start=start, end=end)


# -- jobs ----------------------------------------------------------------------------------------


def ingest_run(spark: SparkTask, pipelines: Sequence[str], requested_by: str) -> Outcomes:
    """Land the open plans of a run.

    Raises:
        AirflowSkipException: The run has no plan.
    """
    unlanded, done = _plans_of_run(pipelines, requested_by)
    log.info("landed_before=%s", ", ".join(map(str, done)) or "none")
    if not unlanded and not done:
        raise AirflowSkipException("this run has no plan")
    return _executed(spark, "ingest", unlanded)


def check_run(spark: SparkTask, pipelines: Sequence[str], requested_by: str) -> Outcomes:
    """Check the landed plans of a run, and earlier plans without a check result.

    An earlier check may have ended without a result. Records of an unchecked plan are not decoded.

    Raises:
        AirflowSkipException: No plan has to be checked.
    """
    _, done = _plans_of_run(pipelines, requested_by)
    outcomes, plans = Outcomes(), set(done)
    app = App.from_environment()
    found = for_each(app, pipelines, lambda each: each.publication.unchecked())
    for name, came in found.items():
        if isinstance(came, TidemarkError):
            outcomes.add(name, came)
        else:
            plans.update(PlanRef(pipeline=name, sequence=sequence) for sequence in came)
    if not plans and not outcomes.records:
        raise AirflowSkipException("no plan has to be checked")
    by_number = sorted(plans, key=lambda plan: (plan.pipeline, plan.sequence))
    outcomes.extend(_executed(spark, "quality", by_number))
    return outcomes


def decode_run(spark: SparkTask, pipelines: Sequence[str]) -> Outcomes:
    """Decode published records, plan by plan, until none are left; also of earlier runs."""
    return spark.on(*_tables(pipelines, PipelineKind.TYPED)).decode()


def upsert_run(spark: SparkTask, pipelines: Sequence[str]) -> Outcomes:
    """Merge decoded records into upsert tables; starts no Spark for tables that are up to date."""
    return spark.on(*_tables(pipelines, PipelineKind.UPSERT)).upsert()


def _executed(spark: SparkTask, job: str, plans: Sequence[PlanRef]) -> Outcomes:
    if not plans:
        return Outcomes()
    return spark.on(*(plan.pipeline for plan in plans)).execute(job, plans)


def _tables(pipelines: Sequence[str], kind: PipelineKind) -> list[str]:
    return [str(PipelineRef(name, kind)) for name in pipelines]


def _plans_of_run(
    pipelines: Sequence[str], requested_by: str
) -> tuple[list[PlanRef], list[PlanRef]]:
    """Return the open plans and the landed plans of a run."""
    from tidemark.ingest.recorder import recorded_plan

    control, run = App.from_environment().control, RunOrigin(requested_by)
    asked = {name: control.summary(name).plan_requested_by(run) for name in pipelines}
    records = [
        recorded_plan(control, pipeline, number)
        for pipeline, number in asked.items()
        if number is not None
    ]
    return (
        [record.plan.ref for record in records if record.held_now is None],
        [record.plan.ref for record in records if record.held_now is not None],
    )


# -- publish -------------------------------------------------------------------------------------


def publish_run(
    alias: str, pipelines: Sequence[str], requested_by: str, ti: TaskInstance, outlet_events: Any
) -> None:
    """Emit an asset event for each published plan of a run, and for each table made from it.

    The event of a typed table or an upsert table says between which versions the table changed
    since the run was planned.

    Raises:
        AirflowSkipException: There is nothing to report.
    """
    before = ti.xcom_pull(task_ids="plan", key=_VERSIONS) or {}
    with airflow_failures():
        _, done = _plans_of_run(pipelines, requested_by)
        events = {
            plan.pipeline: landed(plan.pipeline, plan.sequence)
            for plan in done
            if is_published(plan.pipeline, plan.sequence)
        }
        app = App.from_environment()
        for table, version in _versions(app, pipelines).items():
            since = before.get(table, -1)
            if version > since:
                events[table] = {
                    "pipeline": table,
                    "table": app.layout.data_table(app.spec(table).target),
                    "table_version": version,
                    "since_version": since,
                }
    for table, extra in events.items():
        log.info("published %s", " ".join(f"{key}={value}" for key, value in extra.items()))
        outlet_events[AssetAlias(alias, group="tidemark")].add(table_asset(table), extra=extra)
    if not events:
        raise AirflowSkipException("nothing that this run landed is published")


def _versions(app: App, pipelines: Sequence[str]) -> dict[str, int]:
    """Return the newest versions of the typed tables and upsert tables that can be read."""
    tables = [
        str(PipelineRef(name, kind))
        for name in pipelines
        for kind in (PipelineKind.TYPED, PipelineKind.UPSERT)
    ]
    names = [str(spec.ref) for spec in app.valid_specs(tables)]
    found = for_each(app, names, lambda each: each.table_version())
    return {name: version for name, version in found.items() if isinstance(version, int)}


def is_published(pipeline: str, sequence: int) -> bool:
    """Return whether the published view shows all rows of a landed plan, and log it if not."""
    publication = App.from_environment().pipeline(pipeline).publication.of(sequence)
    if not publication.is_published:
        status = publication.decision.status if publication.decision else "not checked"
        log.warning("not published pipeline=%s plan=%d status=%s", pipeline, sequence, status)
    return publication.is_published


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
    return {
        "pipeline": pipeline,
        "plan": sequence,
        "kind": record.plan.kind.value,
        "table": app.layout.data_table(app.spec(pipeline).target),
        "table_version": record.landed_originally.table_version,
        "records": record.landed_originally.records,
        "replaces": record.plan.replaces,
        "ranges": [[r.partition, r.start, r.end] for r in record.plan.ranges],
    }


def has_left(pipelines: Sequence[str], requested_by: str) -> bool:
    """Return whether a limit left offsets out of a plan of a run."""
    from tidemark.ingest.recorder import recorded_plan

    with airflow_failures():
        _, done = _plans_of_run(pipelines, requested_by)
        control = App.from_environment().control
        left = sum(recorded_plan(control, each.pipeline, each.sequence).plan.left for each in done)
        log.info("left=%d", left)
        return left > 0

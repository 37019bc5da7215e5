"""Functions of the tasks of a pipeline's run. They import heavy libraries after Airflow's fork.

Each task handles all pipelines of its DAG. It finds their plans in the control table by the
requester, which is the run, and continues with the pipelines that can continue.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.airflow.alarms import send_alarm
from tidemark.airflow.connections import check_connections, checked_engine
from tidemark.airflow.failures import failure_text, raise_failed
from tidemark.airflow.operators import with_app
from tidemark.app.app import App
from tidemark.app.pipelines import Outcomes, for_each, plan_each
from tidemark.app.steps import plan, remaining_work
from tidemark.bronze.ingest.errors import PlanCancelled
from tidemark.bronze.ingest.planner import PlanOutcome
from tidemark.core.errors import ExitCode, InvalidSelection, TidemarkError
from tidemark.core.logs import LogFields
from tidemark.core.origins import ChunkOrigin, RunOrigin
from tidemark.core.parallel import PLANNING_THREADS, map_in_threads
from tidemark.core.plan import PlanKind, PlanRef
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.spec.ref import PipelineKind, PipelineRef

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol as DagRun
    from airflow.sdk.types import RuntimeTaskInstanceProtocol as TaskInstance

    from tidemark.airflow.operators import JobOperator
    from tidemark.app.pipeline import Pipeline
    from tidemark.bronze.backfill.selection import TimeWindow
    from tidemark.bronze.ingest.protocols import ControlReader
    from tidemark.core.ledger import PlanRecord

log = logging.getLogger(__name__)

_VERSIONS = "versions"
"""XCom key of the versions that typed tables and upsert tables had when the run was planned."""

_PLANNED = "planned"
"""XCom key of the task `plan`: number of the run's plan, by pipeline."""
_EARLIER = "earlier"
"""XCom key of the earlier plans that a run checks: by pipeline, oldest first."""

_UNREPORTED = "unreported"
"""XCom key of the errors of pipelines whose events `publish` could not send."""

EARLIER_PLANS = f"{{{{ ti.xcom_pull(task_ids='plan', key='{_EARLIER}') | tojson }}}}"
"""Template of the value of `_EARLIER`, as JSON."""

TABLE_VERSIONS = f"{{{{ ti.xcom_pull(task_ids='plan', key='{_VERSIONS}') | tojson }}}}"
"""Template of the value of `_VERSIONS`, as JSON."""

_MOST_EARLIER = 100
"""Maximum number of earlier plans that a run checks. After an upgrade, many may lack a result."""

_LOGGED_OF_EVENTS = ("pipeline", "plan", "table_version", "since_version", "records")
"""The data of an asset event that are fields of its log line."""


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


@with_app
def plan_run(
    app: App, pipelines: Sequence[str], requested_by: str, dag_run: DagRun, ti: TaskInstance
) -> bool:
    """Plan each pipeline, or find the recorded plans of this run.

    Returns:
        Whether the run has work: a plan, or what an earlier run did not finish.

    Raises:
        AirflowException: Pipelines were refused. The others have been planned before.
    """
    # Later tasks need both values, even if the planning fails.
    versions = _versions(app, pipelines).items()
    ti.xcom_push(_VERSIONS, {name: each for name, each in versions if isinstance(each, int)})
    earlier = _earlier_plans(app, pipelines)
    ti.xcom_push(_EARLIER, earlier)
    check_connections(app, pipelines)
    checked_engine(app, pipelines)
    next_plan = partial(plan, requested_by=requested_by, window=_window_of(dag_run))
    plans, outcomes = plan_each(app, pipelines, next_plan, log.info)
    ti.xcom_push(_PLANNED, {each.pipeline: each.sequence for each in plans})
    for each in plans:
        adds = app.pipeline(each.pipeline).bronze.size_estimate(each)
        log.info(
            "plan of the run pipeline=%s plan=%d\n%s\n%s",
            *(each.pipeline, each.sequence, each.explain(), adds.explain()),
        )
    raise_failed(outcomes)
    return bool(plans or earlier) or _has_backlog(app, pipelines)


def _earlier_plans(app: App, pipelines: Sequence[str]) -> dict[str, list[int]]:
    """Return plans without a check result: the oldest of each pipeline first, up to the limit.

    The result omits pipelines whose plans cannot be read: the task `check` raises their errors.
    """
    unchecked = Outcomes().successes(_unchecked(app, pipelines))
    ranked = sorted(
        (rank, name, sequence)
        for name, plans in unchecked.items()
        for rank, sequence in enumerate(plans)
    )
    earlier: dict[str, list[int]] = {}
    for _, name, sequence in ranked[:_MOST_EARLIER]:
        earlier.setdefault(name, []).append(sequence)
    return earlier


def _unchecked(app: App, pipelines: Sequence[str]) -> dict[str, list[int] | TidemarkError]:
    return for_each(app, pipelines, lambda each: each.publication.unchecked())


def _has_backlog(app: App, pipelines: Sequence[str]) -> bool:
    """Return whether plans wait for a check, or records for a decode or a merge.

    An error counts as work: the task that does the work raises it again.
    """
    found = for_each(app, pipelines, remaining_work).values()
    return any(isinstance(each, TidemarkError) or each.is_any for each in found)


def _window_of(dag_run: DagRun) -> TimeWindow | None:
    """Return the interval of a run of `airflow backfill create`; None for other runs."""
    from tidemark.bronze.backfill.selection import TimeWindow

    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    if dag_run.run_type != "backfill" or start is None or end is None or start >= end:
        return None
    return TimeWindow(start=start, end=end)


# -- jobs ----------------------------------------------------------------------------------------


def ingest_run(spark: JobOperator, pipelines: Sequence[str], requested_by: str) -> Outcomes:
    """Land the open plans of a run, and what an earlier attempt at a backfill missed.

    Raises:
        AirflowSkipException: The run has no plan.
    """
    unlanded, done, outcomes = _plans_of_run(spark.app, pipelines, requested_by)
    if done:
        log.info("landed already plans=%s", ",".join(str(each.plan.ref) for each in done))
    if not unlanded and not done and not outcomes.records:
        raise AirflowSkipException("this run has no plan")
    for each in done:
        outcomes.add_landed(each.plan.ref)
    plans = [each.plan.ref for each in unlanded]
    rest = _rest_of_backfills(spark, [*done, *unlanded], requested_by)
    plans += filter(None, outcomes.successes(rest).values())
    outcomes.extend(_executed(spark, "ingest", plans))
    return outcomes


def _rest_of_backfills(
    spark: JobOperator, records: Sequence[PlanRecord], requested_by: str
) -> Mapping[str, PlanRef | TidemarkError | None]:
    """Plan what the landed backfill plans of a run missed; return the new plans by pipeline.

    The newest plan of a pipeline is the last of its `records`.
    """
    newest = {record.plan.pipeline: record for record in records}
    landed = {
        name: record.plan
        for name, record in newest.items()
        if record.plan.kind is PlanKind.BACKFILL and record.held_now is not None
    }

    def rest_of(pipeline: Pipeline) -> PlanRef | None:
        before = landed[pipeline.name]
        rest = pipeline.backfills.plan_rest(before, requested_by).plan
        return None if rest is None or rest.sequence == before.sequence else rest.ref

    return for_each(spark.on(*landed).app, [*landed], rest_of) if landed else {}


def check_run(
    spark: JobOperator, pipelines: Sequence[str], requested_by: str, earlier: str
) -> Outcomes:
    """Check the landed plans of a run, then earlier plans without a check result.

    An earlier check may have ended without a result. Records of an unchecked plan are not decoded.

    Args:
        spark: Runs the job.
        pipelines: The pipelines of the DAG.
        requested_by: The run.
        earlier: The earlier plans that the task `plan` selected, as `EARLIER_PLANS`.

    Raises:
        AirflowSkipException: No plan has to be checked.
    """
    _, done, outcomes = _plans_of_run(spark.app, pipelines, requested_by)
    plans = [each.plan.ref for each in done if not is_replaced(each)]
    selected: Mapping[str, Sequence[int]] = json.loads(earlier) or {}
    for name, found in outcomes.successes(_unchecked(spark.app, pipelines)).items():
        unchecked = [PlanRef(pipeline=name, sequence=sequence) for sequence in found]
        others = [plan for plan in unchecked if plan not in plans]
        chosen = [plan for plan in others if plan.sequence in selected.get(name, ())]
        plans += chosen
        if rest := len(others) - len(chosen):
            log.warning(
                "earlier plans stay unchecked: later runs check them, and `tidemark run` checks "
                "all of them pipeline=%s unchecked_plans=%d",
                *(name, rest),
            )
    if not plans and not outcomes.records:
        raise AirflowSkipException("no plan has to be checked")
    outcomes.extend(_executed(spark, "check", plans))
    return outcomes


def decode_run(spark: JobOperator, pipelines: Sequence[str]) -> Outcomes:
    """Decode published records of this and earlier runs until none are left."""
    # Names of typed tables, because a decode needs no connection to Kafka.
    return spark.on(*_tables(pipelines, PipelineKind.TYPED)).decode()


def upsert_run(spark: JobOperator, pipelines: Sequence[str], versions: str) -> Outcomes:
    """Merge decoded records into upsert tables; starts no Spark for tables that are up to date.

    The outcomes also contain the merge that an earlier attempt made; lineage needs it.

    Args:
        spark: Runs the job.
        pipelines: The pipelines with an upsert table.
        versions: The versions of the tables when the run was planned, as `TABLE_VERSIONS`.
    """
    outcomes = spark.on(*_tables(pipelines, PipelineKind.UPSERT)).upsert()
    before: Mapping[str, int] = json.loads(versions) or {}
    planned = {
        name: before.get(str(PipelineRef(name, PipelineKind.UPSERT)))
        for name, each in outcomes.by_pipeline.items()
        if each.get("outcome") == PlanOutcome.NOTHING
    }

    def merged_before(pipeline: Pipeline) -> Mapping[str, Any] | None:
        version = planned[pipeline.name]
        return None if version is None else pipeline.upsert.planner.table.merge_after(version)

    for name, merge in for_each(spark.app, list(planned), merged_before).items():
        if isinstance(merge, TidemarkError):
            # The table is up to date: an error of lineage must not fail the task.
            log.warning(
                "lineage not collected pipeline=%s error=%s message=%s",
                *(name, type(merge).__name__, merge),
            )
        elif merge is not None:
            outcomes.add(name, merge)
    return outcomes


def _executed(spark: JobOperator, job: str, plans: Sequence[PlanRef]) -> Outcomes:
    if not plans:
        return Outcomes()
    return spark.on(*(plan.pipeline for plan in plans)).execute(job, plans)


def _tables(pipelines: Sequence[str], kind: PipelineKind) -> list[str]:
    return [str(PipelineRef(name, kind)) for name in pipelines]


def _plans_of_run(
    app: App, pipelines: Sequence[str], requested_by: str
) -> tuple[list[PlanRecord], list[PlanRecord], Outcomes]:
    """Return the open plans and the landed plans of a run, and errors of pipelines."""
    outcomes, run = Outcomes(), RunOrigin(requested_by)
    found = for_each(app, pipelines, lambda each: plans_of_origin(app.control, each.name, run))
    records = [record for some in outcomes.successes(found).values() for record in some]
    unlanded = [record for record in records if record.held_now is None]
    return unlanded, [record for record in records if record.held_now is not None], outcomes


def _cancelled_plans(app: App, pipelines: Collection[str], planned: Mapping[str, int]) -> Outcomes:
    """Return PlanCancelled for plans that were abandoned or undone during the run.

    Args:
        app: Tidemark.
        pipelines: Pipelines for which the run no longer has a plan.
        planned: Plans of the newest attempt at the task `plan`, as `_PLANNED`.
    """
    from tidemark.bronze.ingest.ledgers import recorded_plan, refuse_cancelled

    outcomes = Outcomes()
    for name in sorted(planned.keys() & set(pipelines)):
        try:
            refuse_cancelled(recorded_plan(app.control, name, planned[name]))
        except TidemarkError as refused:
            outcomes.add(name, refused)
    return outcomes


def is_replaced(record: PlanRecord) -> bool:
    """Return whether later plans have replaced all rows of a landed plan."""
    return record.held_now is not None and not record.held_now.counts


def plans_of_origin(
    control: ControlReader, pipeline: str, origin: RunOrigin | ChunkOrigin
) -> list[PlanRecord]:
    """Return the newest plan of an origin and its older landed plans; oldest first.

    A backfill has several plans if the landing of one missed records.
    """
    plans = [each for each in control.plans_of(pipeline, origin) if each.cancelled_by is None]
    return [each for each in plans if each.held_now is not None or each is plans[-1]]


# -- publish -------------------------------------------------------------------------------------


@with_app
def publish_run(
    app: App,
    alias: str,
    pipelines: Sequence[str],
    requested_by: str,
    ti: TaskInstance,
    outlet_events: Any,
) -> None:
    """Emit an asset event for each published plan that a run landed or checked.

    A typed or upsert table whose rows changed since the run was planned has an event, too. The
    event contains the versions before and after; `since_version` is None if unknown.

    Airflow drops the events of a failed task. So the last attempt sends the events of the other
    pipelines if one of them fails, and an alarm; `complete_run` then fails with the error.

    Raises:
        AirflowSkipException: There is nothing to report.
        AirflowException, AirflowFailException: A pipeline failed, and a retry can succeed or there
            is no event to send.
    """
    from tidemark.bronze.ingest.ledgers import recorded_plan

    before: Mapping[str, int] = ti.xcom_pull(task_ids="plan", key=_VERSIONS) or {}
    earlier: Mapping[str, Sequence[int]] = ti.xcom_pull(task_ids="plan", key=_EARLIER) or {}
    planned: Mapping[str, int] = ti.xcom_pull(task_ids="plan", key=_PLANNED) or {}
    unlanded, done, outcomes = _plans_of_run(app, pipelines, requested_by)
    known = {each.plan.pipeline for each in (*unlanded, *done)}
    outcomes.extend(_cancelled_plans(app, set(pipelines) - known, planned))
    landed = {each.plan.ref: each for each in done}
    checked = (
        PlanRef(pipeline=name, sequence=sequence)
        for name in pipelines
        for sequence in earlier.get(name, ())
    )
    plans = list(dict.fromkeys((*landed, *checked)))

    def event_of(plan: PlanRef) -> dict[str, Any] | None:
        record = landed.get(plan) or recorded_plan(app.control, plan.pipeline, plan.sequence)
        return plan_event(app, record)

    plan_events = map_in_threads(plans, event_of, PLANNING_THREADS)
    found = list(zip((plan.pipeline for plan in plans), plan_events, strict=True))
    tables = _derived_tables(app, pipelines)
    table_events = map_in_threads(tables, partial(_table_event, app, before), PLANNING_THREADS)
    found += zip(tables, table_events, strict=True)
    events: list[tuple[str, dict[str, Any]]] = []
    for name, extra in found:
        if isinstance(extra, TidemarkError):
            outcomes.add(name, extra)
        elif extra is not None:
            events.append((name, extra))
    is_last = ti.try_number > ti.max_tries
    if not events or (outcomes.exit_code.retryable and not is_last):
        raise_failed(outcomes)
    for table, extra in events:
        log.info(
            "asset event sent %s", LogFields({key: extra.get(key) for key in _LOGGED_OF_EVENTS})
        )
        outlet_events[AssetAlias(alias, group="tidemark")].add(table_asset(table), extra=extra)
    if outcomes.exit_code != ExitCode.OK:
        errors = failure_text(outcomes)
        ti.xcom_push(_UNREPORTED, errors)
        # `complete` does not run if another task has failed.
        where = f"{ti.dag_id}.{ti.task_id} of {ti.run_id}"
        send_alarm(f"{where} sent no asset event of some pipelines: {errors}")
    if not events:
        raise AirflowSkipException("nothing that this run landed or checked is published")


def complete_run(ti: TaskInstance) -> None:
    """Fail if the task `publish` succeeded without the events of some pipelines.

    Raises:
        AirflowFailException
    """
    if errors := ti.xcom_pull(task_ids="publish", key=_UNREPORTED):
        raise AirflowFailException(
            f"publish sent no asset event of some pipelines: {errors}\nFix the errors, then clear "
            "the task publish with its downstream tasks."
        )


def _versions(app: App, pipelines: Sequence[str]) -> dict[str, int | TidemarkError]:
    """Return the newest versions of the typed tables and upsert tables, or their errors."""
    names = _derived_tables(app, pipelines)
    found = map_in_threads(names, app.table_version, PLANNING_THREADS)
    return dict(zip(names, found, strict=True))


def _derived_tables(app: App, pipelines: Sequence[str]) -> list[str]:
    """Return the typed tables and upsert tables of pipelines, each as text of a `PipelineRef`."""
    tables = [
        str(PipelineRef(name, kind))
        for name in pipelines
        for kind in (PipelineKind.TYPED, PipelineKind.UPSERT)
    ]
    return [str(spec.ref) for spec in app.valid_specs(tables)]


def plan_event(app: App, record: PlanRecord) -> dict[str, Any] | None:
    """Return the extra data of the asset event of a landed plan.

    Ranges and records are those that later plans have not replaced.

    Returns:
        The data; None if the published view does not show all rows of the plan, which is logged. A
        plan whose rows were undone or replaced has nothing to publish.

    Raises:
        PlanStillOpen
    """
    from tidemark.core.publication import NOT_CHECKED

    plan = record.plan
    name, sequence = plan.pipeline, plan.sequence
    try:
        publication = app.pipeline(name).publication.of_record(record)
    except (PlanCancelled, InvalidSelection) as gone:
        log.warning(
            "not published pipeline=%s plan=%d error=%s message=%s",
            *(name, sequence, type(gone).__name__, gone),
        )
        return None
    if not publication.is_published:
        status = publication.decision.status if publication.decision else NOT_CHECKED
        log.warning("not published pipeline=%s plan=%d status=%s", name, sequence, status)
        return None
    landing = publication.landing
    return {
        "pipeline": name,
        "plan": sequence,
        "kind": plan.kind.value,
        "table": app.layout.data_table(app.spec(name).target),
        "table_version": landing.table_version,
        "records": landing.records,
        "replaces": plan.replaces,
        "ranges": [[each.partition, each.start, each.end] for each in landing.counts],
    }


@tables_opened_once()
def _table_event(app: App, before: Mapping[str, int], table: str) -> dict[str, Any] | None:
    """Return the extra data of the asset event of a table; None if its rows are unchanged.

    Args:
        app: Tidemark.
        before: The versions of tables when the run was planned, without unknown ones.
        table: Text of a `PipelineRef`.
    """
    version, since = app.table_version(table), before.get(table)
    if version <= (-1 if since is None else since):
        return None
    # A decode or a merge may have stored only how far it has followed.
    if since is not None and not app.may_have_changed_rows(table, since):
        return None
    target = app.layout.data_table(app.spec(table).target)
    return {"pipeline": table, "table": target, "table_version": version, "since_version": since}


@with_app
def has_left(app: App, pipelines: Sequence[str], requested_by: str) -> bool:
    """Return whether a limit left offsets out of a plan of a run.

    Only a pipeline whose plan is published, and for which nothing waits, counts. Another run of a
    blocked or failed pipeline would end in the same way.

    Raises:
        AirflowException, AirflowFailException: A pipeline failed, and no other left offsets.
    """
    _, done, outcomes = _plans_of_run(app, pipelines, requested_by)
    limited = [each for each in done if each.plan.left]
    found = map_in_threads(limited, partial(_is_complete, app), PLANNING_THREADS)
    left = 0
    for record, came in zip(limited, found, strict=True):
        if isinstance(came, TidemarkError):
            outcomes.add(record.plan.pipeline, came)
        elif came:
            left += record.plan.left
    log.info("offsets left out by limits offsets=%d", left)
    if not left:
        raise_failed(outcomes)
    return left > 0


def _is_complete(app: App, record: PlanRecord) -> bool:
    """Return whether a landed plan is published, and no records wait for a decode or a merge."""
    if plan_event(app, record) is None:
        return False
    work = remaining_work(app.pipeline(record.plan.pipeline))
    return not (work.to_decode or work.to_merge)

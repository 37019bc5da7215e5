"""Pages about pipelines: the overview, one pipeline with its coverage, and its plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.exceptions import HTTPException

from tidemark.app.adapters import utc_now
from tidemark.app.pipeline import Pipeline
from tidemark.console.charts import (
    ZOOMS,
    ZoomLink,
    coverage_bar,
    quarantine_track,
    zoom_windows,
)
from tidemark.console.context import PLANS_PER_PAGE, Number, Page, PageContext
from tidemark.console.home import RecordedStatus
from tidemark.console.newest import Newest
from tidemark.console.observer import STATUS_WAIT_S
from tidemark.console.plan_details import plan_details, publication_statuses
from tidemark.console.quality import attempts, report_days
from tidemark.console.recorded_lags import OVERVIEW, Period, highest_lags, state_start
from tidemark.console.runs import run_of
from tidemark.core.errors import InvalidSelection, TidemarkError
from tidemark.core.offsets import Span, SpanSet, size_of
from tidemark.core.parallel import result_or_error
from tidemark.core.plan_history import PlanEntry
from tidemark.delta.opened_tables import reopen_tables, tables_opened_once
from tidemark.delta.status_table import read_status
from tidemark.ops.report.coverage import (
    KnownWatermarks,
    OffsetState,
    PartitionCoverage,
    TopicCoverage,
    choose_partitions,
)
from tidemark.ops.report.metrics import openmetrics
from tidemark.ops.report.observed_status import ObservedStatus
from tidemark.spec.model import PipelineSpec

BARS = 64
"""Maximum number of bars on the page of a pipeline: those of the partitions with the most severe
states."""
PLAN_SPANS = 50
"""Rows of the table of plans below a bar."""


def overview(context: PageContext) -> Page:
    """Every visible pipeline with its newest status, and invalid specs."""
    broken = context.home.app.spec_folder.broken if context.sees_all else {}
    return _overview(context, context.specs, broken)


def dag(context: PageContext, dag_id: str) -> Page:
    """The pipelines of a DAG; the page of a single one itself."""
    specs = context.specs_of_dag(dag_id)
    if not specs:
        raise HTTPException(404, "This DAG has no pipeline that you may see.")
    if len(specs) == 1:
        return pipeline(context, next(iter(specs)))
    return _overview(context, specs, {})


def _overview(
    context: PageContext, specs: Mapping[str, PipelineSpec], broken: Mapping[str, TidemarkError]
) -> Page:
    observed = context.home.statuses.many(list(specs))
    unread = [name for name, seen in observed.items() if seen.status is None and not seen.error]
    recorded = _recorded_statuses(context, {name: specs[name] for name in unread})
    lags, now = context.home.lags(OVERVIEW), utc_now()
    known_lags = lags.value or {}
    order = sorted(specs, key=lambda name: _urgency(observed[name], recorded.get(name)))
    return context.page(
        "overview.html",
        specs={name: specs[name] for name in order},
        paused=context.viewer.paused_dags({spec.dag_id for spec in specs.values()}),
        observed=observed,
        recorded=recorded,
        broken=broken,
        window=OVERVIEW,
        trends={
            name: highest_lags([*known_lags.get(name, ()), *seen.samples], OVERVIEW, now)
            for name, seen in observed.items()
        },
        lags_error=lags.error,
        common_error=_common_error(observed.values()),
    )


def _recorded_statuses(
    context: PageContext, unread: Mapping[str, PipelineSpec]
) -> Mapping[str, RecordedStatus]:
    """Return the recorded statuses of pipelines whose status the console has not read yet."""
    rows = (context.home.recorded_statuses().value or {}) if unread else {}
    return {
        name: rows[name]
        for name, spec in unread.items()
        if name in rows and rows[name].topic in (None, spec.topic)
    }


def _urgency(seen: ObservedStatus, recorded: RecordedStatus | None) -> int:
    """Return the sort group of a row: 0 with an alarm, or without a status because of an error.

    It is 1 for an old status whose newest read failed, and 2 for the others.

    The order does not depend on values that change with each status.
    """
    if seen.status:
        has_alarms = any(seen.status.alarms())
    else:
        has_alarms = bool(seen.error) or (recorded is not None and recorded.has_alarms)
    return 0 if has_alarms else 1 if seen.error else 2


def _common_error(observed: Iterable[ObservedStatus]) -> TidemarkError | None:
    """Return the error of all pipelines that have one; None if their errors differ."""
    found = [each.error or (each.status.kafka_error if each.status else None) for each in observed]
    errors = {str(error): error for error in found if error}
    return next(iter(errors.values())) if len(errors) == 1 else None


@tables_opened_once()
def pipeline(
    context: PageContext,
    name: str,
    partition: Number = None,
    start: Number = None,
    end: Number = None,
    period: Period | None = None,
) -> Page:
    """One pipeline: status, lag over a period, coverage, newest plans.

    A partition and offsets zoom into the coverage.
    """
    pipeline = context.pipeline(name)
    statuses, asked_at = context.home.statuses, time.monotonic()
    # The status and the watermarks wait for Kafka at the same time.
    statuses.one(name, wait_s=0)
    seen = result_or_error(name, lambda _: context.home.watermarks(pipeline))
    watermarks = Newest(error=seen) if isinstance(seen, TidemarkError) else seen
    observed = statuses.one(name, max(0.0, asked_at + STATUS_WAIT_S - time.monotonic()))
    tables = _read_tables(context, pipeline, (partition, start, end), watermarks)
    coverage, plans = tables.coverage, tables.plans
    shown_period = period or Period.DAY
    window = shown_period.window
    # Zoomed pages show neither lag nor the newest plans.
    recorded = context.home.lags(window, name) if partition is None else Newest()
    lags = (recorded.value or {}).get(name, ())
    link = partial(context.link, "pipelines", name, period=period)
    found = coverage if isinstance(coverage, TopicCoverage) else TopicCoverage(partitions=())
    chosen_partitions = choose_partitions(found.partitions, BARS, start, end)
    bars = [_bar(link, each, shown) for each, shown in chosen_partitions.partitions]
    dag_id = pipeline.spec.dag_id
    accepted = {} if isinstance(tables.losses, TidemarkError) else tables.losses
    shown = () if isinstance(plans, TidemarkError) else plans
    return context.page(
        "pipeline.html",
        name=name,
        spec=pipeline.spec,
        dag_id=dag_id,
        paused=context.viewer.paused_dags([dag_id]) if dag_id else (),
        last_run=context.viewer.last_dag_run(dag_id) if dag_id else None,
        observed=observed,
        coverage_error=coverage if isinstance(coverage, TidemarkError) else None,
        kafka_error=found.kafka_error,
        watermarks=watermarks,
        topic_id=found.topic_id,
        table_error=observed.status.table_error if observed.status else None,
        is_compared=observed.status is not None,
        partition_statuses=(
            {each.partition: each for each in observed.status.partitions} if observed.status else {}
        ),
        more_partitions=chosen_partitions.others_text,
        bars=bars,
        states=[state for state in OffsetState if any(state in bar.states for bar in bars)],
        accepted=accepted,
        accepted_offsets=size_of(accepted),
        partition=partition,
        plan_spans=PLAN_SPANS,
        plans=shown,
        plans_error=plans if isinstance(plans, TidemarkError) else None,
        statuses=publication_statuses(shown),
        period=shown_period,
        periods={each: context.link("pipelines", name, period=each) for each in Period},
        window=window,
        lags=highest_lags([*lags, *observed.samples], window, utc_now()),
        lags_error=recorded.error,
        since=state_start(lags, observed.status.state) if observed.status else None,
        is_unrecorded=recorded.value is not None and not recorded.error and not lags,
        own_link=link,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableReads:
    """The contents of the tables of a pipeline, or the errors of their reads.

    Attributes:
        coverage: The state of each offset, by partition.
        plans: The newest plans; empty for a page of one partition.
        losses: The accepted losses; see `_accepted_losses`.
    """

    coverage: TopicCoverage | TidemarkError
    plans: Sequence[PlanEntry] | TidemarkError
    losses: Mapping[int, SpanSet] | TidemarkError


def _read_tables(
    context: PageContext,
    pipeline: Pipeline,
    place: tuple[int | None, int | None, int | None],
    watermarks: Newest[KnownWatermarks],
) -> _TableReads:
    """Read the tables of a pipeline. Call it after the last wait for Kafka.

    Args:
        context: Context of the page.
        pipeline: The pipeline.
        place: Partition and offsets of the coverage; see `CoverageReader.read`.
        watermarks: The newest watermarks. If another process changes the pipeline during the reads,
            they are read again.
    """
    reopen_tables()
    name, (partition, start, end) = pipeline.name, place
    known = iter([watermarks])

    def required() -> KnownWatermarks:
        return (next(known, None) or context.home.watermarks(pipeline)).required()

    coverage = result_or_error(
        name,
        lambda _: pipeline.report.coverage.read(
            partition, start, end, required, checks_table=False
        ),
    )
    plans: Sequence[PlanEntry] | TidemarkError = ()
    if partition is None:
        plans = result_or_error(name, lambda _: context.home.plans(name, None, PLANS_PER_PAGE))
    return _TableReads(
        coverage=coverage,
        plans=plans,
        losses=result_or_error(name, lambda _: _accepted_losses(pipeline, partition)),
    )


def _accepted_losses(pipeline: Pipeline, partition: int | None) -> Mapping[int, SpanSet]:
    """Return the offsets of accepted losses that have not landed since then, by partition.

    Args:
        pipeline: The pipeline.
        partition: Only of this partition; None for all.
    """
    lost = pipeline.control.summary(pipeline.name).lost
    return {number: lost[number] for number in sorted(lost) if partition in (None, number)}


def metrics(context: PageContext) -> str:
    """Return the newest row of each visible pipeline in the status table, as OpenMetrics.

    A viewer who may see invalid specs also has the rows of their pipelines, so that no alarm ends
    because a spec became invalid. The number of invalid specs is for every viewer.
    """
    app = context.home.app
    rows = read_status(app.layout.status_table)
    if not context.sees_all:
        rows = [row for row in rows if row["pipeline"] in context.specs]
    return openmetrics(rows, utc_now(), invalid_specs=len(app.spec_folder.broken))


def plans(context: PageContext, name: str, before: Number = None) -> Page:
    """Plans of a pipeline, newest first, a page of them."""
    spec = context.pipeline(name).spec
    entries = context.home.plans(name, before, PLANS_PER_PAGE)
    older = entries[-1].record.plan.sequence if entries else 1
    return context.page(
        "plans.html",
        name=name,
        plans=entries,
        statuses=publication_statuses(entries),
        older=older,
        spec=spec,
    )


def plan(context: PageContext, name: str, sequence: int) -> Page:
    """One plan: ranges, events, checks and publication."""
    pipeline = context.pipeline(name)
    entries = pipeline.control.plan_history(name, sequence, sequence + 1)
    if not entries:
        newest = pipeline.control.summary(name).last_sequence
        raise InvalidSelection.of_plan(pipeline=name, sequence=sequence, latest=newest or None)
    details = plan_details(context, pipeline, entries[0])
    return context.page(
        "plan.html",
        name=name,
        spec=pipeline.spec,
        details=details,
        suite_error=context.suite_error(pipeline) if details.checked else None,
        attempts=attempts(context, pipeline, entries[0].record.plan.ref) if details.checked else (),
        report_days=report_days(entries[0].landed_at, utc_now()),
        run_of=run_of,
    )


def _bar(link: Callable[..., str], coverage: PartitionCoverage, window: Span | None) -> _Bar:
    extent = coverage.extent
    if window is None or extent is None:
        return _Bar(coverage=coverage, window=None, svg="", track="", out=None, states={})
    links = [
        ZoomLink(
            window=part,
            href=link(partition=coverage.partition, start=part.start, end=part.end),
        )
        for part in zoom_windows(window)
        if part != window
    ]
    wider = window.size * ZOOMS
    out = Span(max(0, window.start - wider // 2), min(extent.end, window.end + wider // 2))
    return _Bar(
        coverage=coverage,
        window=window,
        svg=coverage_bar(coverage, window, links),
        track=quarantine_track(coverage, window),
        out=link(partition=coverage.partition, start=out.start, end=out.end)
        if window != extent
        else None,
        states=coverage.totals(window),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """The bar of one partition.

    Attributes:
        coverage: The partition.
        window: The offsets of the bar; None without offsets.
        svg: The bar.
        track: The track of its quarantined offsets; empty without any.
        out: Address of a wider window; None for the whole partition.
        states: Number of offsets by state, in the window.
    """

    coverage: PartitionCoverage
    window: Span | None
    svg: str
    track: str
    out: str | None
    states: Mapping[OffsetState, int]

"""The steps of a run: plan, ingest, check, decode, upsert, publish.

A step is a function of a pipeline. `STEPS` is the only list of them: commands, jobs on Spark and
the tasks of DAGs take their steps and texts from it. `complete` takes all steps in one process.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from tidemark.app.app import App
from tidemark.bronze.ingest.ledgers import recorded_plan, refuse_cancelled
from tidemark.bronze.ingest.planner import PlanOutcome, PlanResult
from tidemark.core.decode_work import Decoded
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.logs import LogFields
from tidemark.core.parallel import map_in_threads, result_or_error
from tidemark.core.plain import record_of
from tidemark.core.plan import PlanRef
from tidemark.core.publication import NOT_CHECKED
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.quality.service import raise_if_failed
from tidemark.spark.sessions import Sessions
from tidemark.spec.layout import LOG_FOLDER, Layout
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import DecodeRef, MergeRef, Replay
from tidemark.spec.upsert import MergePlan

if TYPE_CHECKING:
    from tidemark.app.pipeline import Pipeline
    from tidemark.bronze.backfill.selection import TimeWindow
    from tidemark.silver.typed.state import DecodeBacklog

log = logging.getLogger(__name__)

AnyRef: TypeAlias = PlanRef | MergeRef | DecodeRef
Ref = TypeVar("Ref", PlanRef, MergeRef, DecodeRef)

Result: TypeAlias = Mapping[str, Any]
"""The result of one step, as plain values for `--json`."""

Outcome: TypeAlias = tuple[Result, int]
"""The result of a plan or a step, or its named error, and the exit code."""


def outcome(result: Result | Outcome | TidemarkError) -> Outcome:
    """Return a result with exit code 0, or a named error as plain values with its exit code."""
    if isinstance(result, TidemarkError):
        return result.as_record(), result.exit_code
    return result if isinstance(result, tuple) else (result, ExitCode.OK)


# -- the steps -----------------------------------------------------------------------------------


def plan(
    pipeline: Pipeline,
    requested_by: str,
    window: TimeWindow | None = None,
    *,
    dry_run: bool = False,
) -> PlanResult:
    """Plan unread offsets, or the missing offsets of a time window. Starts no Spark.

    Args:
        pipeline: The pipeline.
        requested_by: The run. A repeated call with the same run returns the same plan.
        window: The window; None for the unread offsets.
        dry_run: Record no plan of unread offsets.
    """
    if window is None:
        return pipeline.plan(requested_by, dry_run=dry_run)
    return pipeline.backfills.plan_whole(window, requested_by)


def ingest(pipeline: Pipeline, plan: PlanRef) -> Result:
    """Execute a plan: from Kafka into the bronze table."""
    execution = pipeline.ingest(plan.sequence)
    return {
        "wrote": execution.wrote,
        "records": execution.landing.records,
        "table_version": execution.landing.table_version,
        "partitions": execution.landing.by_partition(),
    }


def check(pipeline: Pipeline, plan: PlanRef) -> Result:
    """Check a landed plan, and publish it, or block it and raise QualityFailed."""
    report = pipeline.check(plan.sequence)
    raise_if_failed(report)
    return {
        "outcome": report.outcome.value,
        "checks": len(report.results),
        "data_docs": report.data_docs,
    }


def decode(pipeline: Pipeline, ref: DecodeRef) -> Outcome | None:
    """Decode published records until none are left; None if there were none.

    An error ends the decode. The outcome then has the changes before it, and the error.
    """
    rounds: list[Decoded] = []

    def run(_: DecodeRef) -> Result:
        with named_failures(pipeline.adapters.layout, f"decoding {ref}"):
            for each in pipeline.typed.decode_rounds(ref.replay):
                rounds.append(each)
        return {}

    ended = result_or_error(ref, run)
    total = sum(rounds, Decoded())
    done = total.as_record() if rounds else {}
    # Also after an error: no later decode reports the fields of these plans.
    unnamed, unnamed_code = outcome(
        result_or_error(ref, lambda _: _unnamed_fields(pipeline, total))
    )
    result, code = outcome(ended)
    code = code or unnamed_code
    return ({**done, **unnamed, **result}, code) if done or code else None


def _unnamed_fields(pipeline: Pipeline, decoded: Decoded) -> Result:
    """Return the fields of decoded records that the schema does not name, and log them."""
    runs = decoded.plans.spans
    plans = (runs[0].start, runs[-1].end - 1) if runs else None
    unnamed = pipeline.typed.unnamed_fields(plans) if plans else None
    if unnamed and unnamed.records:
        log.warning(
            "records have fields that the schema does not name pipeline=%s records=%d fields=%s",
            *(pipeline.name, unnamed.records, json.dumps(list(unnamed.names))),
        )
    return {"unnamed_fields": unnamed.as_record()} if unnamed else {}


def upsert(pipeline: Pipeline, _: MergeRef | None) -> Result | None:
    """Merge missing records into the upsert table; None if there are none."""
    merge = pipeline.upsert.merge()
    return None if merge is None else merge.as_record()


def publish(pipeline: Pipeline, run: PipelineRun) -> Result | None:
    """Report whether the published view contains a run's plan; None if the plan has no rows."""
    record = recorded_plan(pipeline.control, pipeline.name, run.plan.sequence)
    has_landed = any(step["step"] == "ingest" for step in run.steps)
    if has_landed:
        # An operator took the plan back while its run continued.
        refuse_cancelled(record)
    if record.held_now is None or not record.held_now.counts:
        return None
    publication = pipeline.publication.of_record(record)
    status = publication.decision.status.value if publication.decision else NOT_CHECKED
    left_behind = publication.plan.left if has_landed else 0
    return {"published": publication.is_published, "status": status, "left": left_behind}


def preview_replay(pipeline: Pipeline, ref: DecodeRef) -> Result:
    """Decode records in quarantine with the current spec. Writes nothing."""
    return pipeline.typed.preview_replay(ref.replay or Replay()).as_record()


# -- the work that is left -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingWork:
    """The remaining work of a pipeline after its last ingest.

    Attributes:
        newest: The newest landed plan, or the newest plan that is not open if none has landed; None
            without one.
        to_check: Landed plans without a check result or a decision.
        to_decode: Number of offsets to decode, or to remove from the typed table.
        unchecked: Number of landed offsets that are decoded after a check or an operator publishes
            them.
        quarantine_behind: Whether a decode has to complete the quarantine.
        to_merge: The next merge into the upsert table; None if that table is up to date.
    """

    newest: int | None
    to_check: tuple[int, ...] = ()
    to_decode: int = 0
    unchecked: int = 0
    quarantine_behind: bool = False
    to_merge: MergePlan | None = None

    @property
    def is_any(self) -> bool:
        """Whether a step has work to do."""
        steps = (self.to_check, self.to_decode, self.quarantine_behind, self.to_merge)
        return any(map(bool, steps))

    def as_record(self) -> Result:
        """The work as plain values, for `--json`."""
        return record_of(self, without={"newest"})


@tables_opened_once()
def remaining_work(pipeline: Pipeline) -> RemainingWork:
    """Return the remaining work of a pipeline. Writes nothing and starts no Spark."""
    newest = _newest_settled(pipeline)
    if newest is None:
        return RemainingWork(newest=None)
    backlog = _backlog(pipeline)
    return RemainingWork(
        newest=newest,
        to_check=tuple(pipeline.publication.unchecked()),
        to_decode=backlog.offsets if backlog else 0,
        unchecked=backlog.unchecked if backlog else 0,
        quarantine_behind=backlog is not None and backlog.quarantine_behind,
        to_merge=pipeline.upsert.planner.next() if pipeline.spec.has_upsert else None,
    )


def _newest_settled(pipeline: Pipeline) -> int | None:
    newest = pipeline.control.summary(pipeline.name).last_landed_sequence
    if newest is not None:
        return newest
    # All plans may be undone, and their rows still be in the typed table.
    plans = pipeline.control.ledger(pipeline.name).plans
    return max((number for number, each in plans.items() if not each.is_open), default=None)


def _backlog(pipeline: Pipeline) -> DecodeBacklog | None:
    return pipeline.typed.backlog() if pipeline.spec.decode else None


def offsets_of(app: App, refs: Sequence[AnyRef]) -> int | None:
    """Return how many offsets some plans or decodes read at most; None if that is unknown."""
    sizes = [_offsets_of(app, ref) for ref in refs]
    known = [each for each in sizes if each is not None]
    return sum(known) if len(known) == len(sizes) else None


def _offsets_of(app: App, ref: AnyRef) -> int | None:
    if isinstance(ref, PlanRef):
        record = app.control.plan_record(ref.pipeline, ref.sequence)
        return record.plan.size if record else None
    if not isinstance(ref, DecodeRef) or ref.replay:
        return None
    backlog = _backlog(app.pipeline(ref.pipeline))
    return backlog.offsets if backlog else None


def offsets_of_run(app: App, plans: Sequence[AnyRef]) -> int | None:
    """Return the number of offsets that `complete` reads at most; None if it is unknown."""
    planned = offsets_of(app, plans)
    if planned is None:
        return None
    backlogs = [_backlog(app.pipeline(plan.pipeline)) for plan in plans]
    return planned + sum(each.offsets + each.unchecked for each in backlogs if each)


# -- the table of steps --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[Ref]):
    """A step of a run, or another job.

    Attributes:
        take: Takes the step for a plan, merge or decode of a pipeline, and returns plain values, or
            an outcome. None if there was nothing to do.
        needs_spark: Whether the step is a job.
        kind: The type of the references to its plans, merges or decodes.
        take_all: Takes the step for several plans; None to take it for each.
        concurrent: Whether plans take the step at the same time, in threads.
        has: Whether a pipeline has the step.
        left: Returns the arguments of `take` for the remaining work in a run of all steps.
        reads_kafka: Whether the job gets the Kafka connections of its pipelines.
        reads_registry: Whether the job gets the connections of its pipelines to schema registries.
        title: One line for the list of commands.
        page: What the step does, for the page of its task.
        timeout: Longest duration of its task.
    """

    take: Callable[[Pipeline, Any], Any] = lambda *_: None
    needs_spark: bool = True
    kind: type[AnyRef] = PlanRef
    take_all: Callable[[App, Sessions, Sequence[Ref]], list[Outcome]] | None = None
    concurrent: bool = False
    has: Callable[[PipelineSpec], bool] = lambda _: True
    left: Callable[[PipelineRun], Iterable[Any]] = lambda _: ()
    reads_kafka: bool = False
    reads_registry: bool = False
    title: str = ""
    page: str = ""
    timeout: timedelta = timedelta(minutes=15)

    def outcomes(self, app: App, sessions: Sessions, refs: Sequence[Ref]) -> list[Outcome]:
        """Take the step for each plan, merge or decode. A failure does not stop the others."""

        def one(ref: Ref) -> Result | Outcome:
            with named_failures(app.layout, f"executing {ref}"):
                pipeline = app.pipeline(ref.pipeline, sessions)
                found: Result | Outcome | None = self.take(pipeline, ref)
                return found or {"outcome": PlanOutcome.NOTHING.value}

        if self.take_all:
            return self.take_all(app, sessions, refs)
        with named_failures(app.layout, "starting Spark"):
            threads = sessions.plans_at_once() if self.concurrent else 1
        return [outcome(each) for each in map_in_threads(refs, one, threads)]


# -- all steps -----------------------------------------------------------------------------------


def complete(app: App, sessions: Sessions, plans: Sequence[PlanRef]) -> list[Outcome]:
    """Take all remaining steps of some pipelines, one kind of step after the other.

    After a failed step the later steps of the pipeline still run: they process earlier
    landings. The failure sets the exit code.

    Args:
        app: Tidemark.
        sessions: Provides the Spark sessions.
        plans: A plan of each pipeline. `complete` executes it if it is open.

    Returns:
        The results of all steps of each plan, and its worst exit code, in the order of `plans`.
    """
    _import_great_expectations(app, plans)
    with named_failures(app.layout, "starting Spark"):
        at_once = sessions.plans_at_once()
    stopped = Event()
    runs = [PipelineRun(app, sessions, plan, stopped) for plan in plans]
    try:
        for step in STEPS:
            take = partial(PipelineRun.take, step=step)
            found = map_in_threads(runs, take, at_once if STEPS[step].concurrent else 1)
            for run, error in zip(runs, found, strict=True):
                if error is not None:
                    run.add(step, error, 0.0)
    except BaseException:
        # The process is ending; threads that still run take no further step.
        stopped.set()
        raise
    return [({"steps": run.steps}, ExitCode.worst(run.codes)) for run in runs]


def _import_great_expectations(app: App, plans: Sequence[PlanRef]) -> None:
    """Start importing Great Expectations in a thread if a suite of a pipeline needs it.

    Ignores unreadable suites; their checks fail.
    """
    from tidemark.quality.checker import import_ahead
    from tidemark.quality.suite import load_suite

    for suite in filter(None, {app.spec(plan.pipeline).suite for plan in plans}):
        with suppress(TidemarkError):
            if load_suite(app.layout.suite(suite)).expectations:
                import_ahead()
                return


_LOGGED = (
    *("step", "plan", "error", "wrote", "records", "quarantined", "table_version"),
    *("outcome", "checks", "scope", "published", "status", "left", "seconds"),
)
"""The values of a step that are fields of its log line; of an error only the name."""


class PipelineRun:
    """The run of one pipeline in `complete`.

    Attributes:
        pipeline: The pipeline.
        plan: Its plan.
        steps: The result or the error of each step, in order.
        codes: The exit code of each step.
    """

    def __init__(self, app: App, sessions: Sessions, plan: PlanRef, stopped: Event) -> None:
        self._app = app
        self._stopped = stopped
        self.pipeline = app.pipeline(plan.pipeline, sessions)
        self.plan = plan
        self.steps: list[Result] = []
        self.codes: list[int] = []

    def take(self, step: str) -> None:
        """Take a step until it has nothing left to do."""
        left = self._left(step)
        argument: Any = None

        def taken(_: str) -> Result | Outcome | None:
            nonlocal argument
            with named_failures(self._app.layout, f"{step} of {self.plan.pipeline}"):
                for argument in left:
                    found: Result | Outcome | None = STEPS[step].take(self.pipeline, argument)
                    return found
            return None

        while not self._stopped.is_set():
            begun, argument = time.monotonic(), None
            result = result_or_error(self.plan.pipeline, taken)
            if result is None:
                return
            plan = self.plan if argument is self else argument
            number = plan.sequence if isinstance(plan, PlanRef) else None
            self.add(step, result, time.monotonic() - begun, number)

    def _left(self, step: str) -> Iterator[Any]:
        if STEPS[step].has(self.pipeline.spec):
            yield from STEPS[step].left(self)

    def open_plan(self) -> Iterator[PlanRef]:
        """Yield the plan if it is open."""
        if recorded_plan(self.pipeline.control, self.pipeline.name, self.plan.sequence).is_open:
            yield self.plan

    def unchecked_plans(self) -> Iterator[PlanRef]:
        """Yield every landed plan that has no check result."""
        for sequence in self.pipeline.publication.unchecked():
            yield replace(self.plan, sequence=sequence)

    def add(
        self,
        step: str,
        result: Result | Outcome | TidemarkError,
        seconds: float,
        plan: int | None = None,
    ) -> None:
        """Store the result or the error of a step, and log one line."""
        values, code = outcome(result)
        self.steps.append({"step": step, "plan": plan, **values, "seconds": round(seconds, 2)})
        self.codes.append(code)
        level = logging.WARNING if code else logging.INFO
        known = {key: self.steps[-1].get(key) for key in _LOGGED}
        log.log(level, "step ended %s", LogFields({"pipeline": self.plan.pipeline, **known}))


STEPS: Mapping[str, Step[Any]] = {
    "plan": Step(
        take=plan,
        needs_spark=False,
        title="Select the offsets to read next, and record the plan.",
        page="Selects and records the offsets that this run reads. Ends the run if there is no "
        "work. Starts no Spark.",
    ),
    "ingest": Step(
        take=ingest,
        concurrent=True,
        left=PipelineRun.open_plan,
        reads_kafka=True,
        title="Plan and land, in one Spark application.",
        page="Lands each plan in its table, in one transaction, exactly once.",
        timeout=timedelta(hours=6),
    ),
    # Great Expectations checks one plan at a time, and each merge uses its own session.
    "check": Step(
        take=check,
        left=PipelineRun.unchecked_plans,
        title="Check the records of a landed plan.",
        page="Checks the landed rows. If a check fails, the rows stay in the table, unpublished.",
        timeout=timedelta(hours=2),
    ),
    "decode": Step(
        take=decode,
        kind=DecodeRef,
        concurrent=True,
        has=lambda spec: spec.decode is not None,
        left=lambda run: [DecodeRef(pipeline=run.pipeline.name)],
        reads_registry=True,
        title="Decode published records into typed tables.",
        page="Decodes published records into typed tables. Starts no Spark if none are left.",
        timeout=timedelta(hours=6),
    ),
    "upsert": Step(
        take=upsert,
        kind=MergeRef,
        has=lambda spec: spec.has_upsert,
        left=lambda _: [None],
        title="Merge typed rows by key into upsert tables.",
        page="Merges typed rows by key. Starts no Spark if nothing has changed.",
        timeout=timedelta(hours=6),
    ),
    "publish": Step(
        take=publish,
        needs_spark=False,
        concurrent=True,
        left=lambda run: [run],
        page="Reports new versions of the tables, and the landed ranges, as asset events.",
    ),
}
"""The steps of a run. Each works on the results of the steps before it."""

JOBS: Mapping[str, Step[Any]] = {
    **{name: step for name, step in STEPS.items() if step.needs_spark},
    "replay_preview": Step(take=preview_replay, kind=DecodeRef, reads_registry=True),
    "run": Step(
        take_all=complete,
        reads_kafka=True,
        reads_registry=True,
    ),
}
"""Jobs on Spark, by the names of their entry points in jobs/."""


# -- failures of Spark ---------------------------------------------------------------------------


@contextmanager
def named_failures(layout: Layout, operation: str) -> Iterator[None]:
    """Convert Spark exceptions that no adapter converts into named errors."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tidemark.spark.failures import spark_error

    try:
        yield
    except (PySparkException, Py4JError) as failure:
        raise spark_error(
            failure,
            operation,
            location=layout.lakehouse,
            settings={LOG_FOLDER: str(layout.logs)},
            may_have_values=True,
        ) from None

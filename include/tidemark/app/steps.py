"""The steps of a run after its plan: ingest, check, decode, upsert, publish.

Each step is one function of a plan or a pipeline. A job takes one step for several plans.
`complete` takes all steps for several pipelines in one process.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeAlias

from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.bronze.ingest.errors import CommitNotFound
from tidemark.bronze.ingest.ledgers import recorded_plan, refuse_cancelled
from tidemark.bronze.ingest.planner import PlanOutcome, PlanResult
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.logs import LogFields
from tidemark.core.parallel import map_in_threads, result_or_error
from tidemark.core.plain import record_of
from tidemark.core.plan import PlanRef
from tidemark.core.publication import NOT_CHECKED
from tidemark.quality.service import raise_if_failed
from tidemark.spec.layout import LOG_FOLDER
from tidemark.spec.ref import MergeRef, ReplayRef
from tidemark.spec.upsert import MergePlan

if TYPE_CHECKING:
    from tidemark.silver.typed.decoder import DecodeBacklog

log = logging.getLogger(__name__)

Result: TypeAlias = Mapping[str, Any]
"""The result of one step, as plain values for `--json`."""

Outcome: TypeAlias = tuple[Result, int]
"""The result of a plan or a step, or its named error, and the exit code."""


def outcome(result: Result | TidemarkError) -> Outcome:
    """Return a result with exit code 0, or a named error as plain values with its exit code."""
    if isinstance(result, TidemarkError):
        return result.as_record(), result.exit_code
    return result, ExitCode.OK


def ingest(app: App, plan: PlanRef) -> Result:
    """Execute a plan: from Kafka into the bronze table, or from bronze into the typed table."""
    pipeline = app.pipeline(plan.pipeline)
    execution = pipeline.ingest(plan.sequence)
    quarantined = pipeline.quarantined(plan.sequence)
    unnamed = pipeline.unnamed_fields(plan.sequence) if pipeline.spec.is_typed else None
    if unnamed and unnamed.records:
        log.warning(
            "records have fields that the schema does not name pipeline=%s plan=%d records=%d "
            "fields=%s",
            *(plan.pipeline, plan.sequence, unnamed.records, json.dumps(list(unnamed.names))),
        )
    return {
        "wrote": execution.wrote,
        "records": execution.landing.records,
        **({} if quarantined is None else {"quarantined": quarantined}),
        **({} if unnamed is None else {"unnamed_fields": unnamed.as_record()}),
        "table_version": execution.landing.table_version,
        "partitions": execution.landing.by_partition(),
    }


def check(app: App, plan: PlanRef) -> Result:
    """Check a landed plan, and publish it, or block it and raise QualityFailed."""
    report = app.pipeline(plan.pipeline).check(plan.sequence)
    raise_if_failed(report)
    return {
        "outcome": report.outcome.value,
        "checks": len(report.results),
        "data_docs": report.data_docs,
    }


def upsert(app: App, merge: MergeRef) -> Result:
    """Merge missing records into an upsert table."""
    return _merged(app.pipeline(merge.pipeline)) or {"outcome": PlanOutcome.NOTHING.value}


def preview_replay(app: App, replay: ReplayRef) -> Result:
    """Decode open records in quarantine with the current spec. Writes nothing."""
    return app.pipeline(replay.pipeline).preview_replay(replay.partition, replay.reason).as_record()


def _merged(pipeline: Pipeline) -> Result | None:
    merge = pipeline.merge()
    return None if merge is None else merge.as_record()


class NewDecodePlans:
    """Plans the next decode of pipelines, for loops that decode until no records are left.

    A plan that is still open after its execution would be executed without end.

    Args:
        next_plan: Plans one pipeline; None to plan all remaining records.
    """

    def __init__(self, next_plan: Callable[[Pipeline], PlanResult] | None = None) -> None:
        self._next_plan = next_plan or (lambda each: each.decoder.plan())
        self._returned: set[PlanRef] = set()

    def __call__(self, pipeline: Pipeline) -> PlanResult:
        """Return the next plan.

        Raises:
            CommitNotFound: An earlier call has returned the same plan.
        """
        result = self._next_plan(pipeline)
        if result.plan is None:
            return result
        plan = result.plan.ref
        if plan in self._returned:
            raise CommitNotFound(
                pipeline=plan.pipeline, sequence=plan.sequence, seen="an open plan"
            )
        self._returned.add(plan)
        return result


# -- all steps -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingWork:
    """The remaining work of a pipeline after its last ingest.

    Attributes:
        newest: The newest landed plan, or the newest plan that is not open if none has landed; None
            without one.
        to_check: Landed plans without a check result or a decision.
        to_decode: Number of offsets to decode, to decode again, or to remove from the typed table.
        unchecked: Number of landed offsets that are decoded after a check or an operator publishes
            them.
        to_merge: The next merge into the upsert table; None if that table is up to date.
    """

    newest: int | None
    to_check: tuple[int, ...] = ()
    to_decode: int = 0
    unchecked: int = 0
    to_merge: MergePlan | None = None

    @property
    def is_any(self) -> bool:
        """Whether a step has work to do."""
        return bool(self.to_check or self.to_decode or self.to_merge)

    def as_record(self) -> Result:
        """The work as plain values, for `--json`."""
        return record_of(self, without={"newest"})


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
        to_merge=pipeline.upserts.next() if pipeline.spec.has_upsert else None,
    )


def _newest_settled(pipeline: Pipeline) -> int | None:
    newest = pipeline.control.summary(pipeline.name).last_landed_sequence
    if newest is not None:
        return newest
    # All plans may be undone, and their rows still be in the typed table.
    plans = pipeline.control.ledger(pipeline.name).plans
    return max((number for number, each in plans.items() if not each.is_open), default=None)


def _backlog(pipeline: Pipeline) -> DecodeBacklog | None:
    return pipeline.decoder.backlog() if pipeline.spec.decode else None


def offsets_of(app: App, plans: Sequence[PlanRef]) -> int | None:
    """Return the number of offsets of some plans; None if one of them does not exist."""
    found = [app.control.plan_record(plan.pipeline, plan.sequence) for plan in plans]
    sizes = [record.plan.size for record in found if record]
    return sum(sizes) if len(sizes) == len(plans) else None


def offsets_of_run(app: App, plans: Sequence[PlanRef]) -> int | None:
    """Return the number of offsets that `complete` reads at most; None if it is unknown."""
    planned = offsets_of(app, plans)
    if planned is None:
        return None
    backlogs = [_backlog(app.pipeline(plan.pipeline)) for plan in plans]
    return planned + sum(each.offsets + each.unchecked for each in backlogs if each)


def complete(app: App, plans: Sequence[PlanRef]) -> list[Outcome]:
    """Take all remaining steps of some pipelines, one kind of step after the other.

    After a failed step the later steps of the pipeline still run: they process earlier
    landings. The failure sets the exit code.

    Args:
        app: Tidemark.
        plans: A plan of each pipeline. `complete` executes it if it is open.

    Returns:
        The results of all steps of each plan, and its worst exit code, in the order of `plans`.
    """
    _import_great_expectations(app, plans)
    with named_failures(app, "starting Spark"):
        at_once = app.sessions.plans_at_once()
    stopped = Event()
    runs = [_PipelineRun(app, plan, stopped) for plan in plans]
    try:
        _take_all(runs, at_once)
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


def _take_all(runs: Sequence[_PipelineRun], at_once: int) -> None:
    for step, method, threads in (
        ("ingest", _PipelineRun.ingest, at_once),
        # Great Expectations checks one plan at a time, and each merge uses its own session.
        ("check", _PipelineRun.check, 1),
        ("decode", _PipelineRun.decode, at_once),
        ("upsert", _PipelineRun.upsert, 1),
        ("publish", _PipelineRun.publish, at_once),
    ):
        for run, error in zip(runs, map_in_threads(runs, method, threads), strict=True):
            if isinstance(error, TidemarkError):
                run.add(step, error, 0.0)


_LOGGED = (
    *("step", "plan", "error", "wrote", "records", "quarantined", "table_version"),
    *("outcome", "checks", "scope", "published", "status", "left", "seconds"),
)
"""The values of a step that are fields of its log line; of an error only the name."""


class _PipelineRun:
    """The steps of one pipeline.

    Attributes:
        steps: The result or the error of each step, in order.
        codes: The exit code of each step.
    """

    def __init__(self, app: App, plan: PlanRef, stopped: Event) -> None:
        self._app = app
        self._pipeline = app.pipeline(plan.pipeline)
        self._plan = plan
        self._stopped = stopped
        self._new_decode_plan = NewDecodePlans()
        self.steps: list[Result] = []
        self.codes: list[int] = []

    def ingest(self) -> None:
        """Land the plan if it is open."""
        self._take("ingest", self._ingested, self._plan.sequence)

    def _ingested(self) -> Result | None:
        record = recorded_plan(self._app.control, self._plan.pipeline, self._plan.sequence)
        return ingest(self._app, self._plan) if record.is_open else None

    def check(self) -> None:
        """Check every landed plan that has no check result."""
        for sequence in self._pipeline.publication.unchecked():
            plan = replace(self._plan, sequence=sequence)
            self._take("check", partial(check, self._app, plan), sequence)

    def decode(self) -> None:
        """Decode until the pipeline has no records left to decode."""
        if self._pipeline.spec.decode is None:
            return
        while self._take("decode", self._decode_next):
            pass

    def _decode_next(self) -> Result | None:
        plan = self._new_decode_plan(self._pipeline).plan
        if plan is None:
            return None
        return {"plan": plan.sequence, **ingest(self._app, plan.ref)}

    def upsert(self) -> None:
        """Merge the decoded records into the upsert table."""
        if self._pipeline.spec.has_upsert:
            self._take("upsert", lambda: _merged(self._pipeline))

    def publish(self) -> None:
        """Report whether the published view contains the plan, unless the plan has no rows."""
        self._take("publish", self._published, self._plan.sequence)

    def _published(self) -> Result | None:
        record = recorded_plan(self._app.control, self._plan.pipeline, self._plan.sequence)
        has_landed = any(step["step"] == "ingest" for step in self.steps)
        if has_landed:
            # An operator took the plan back while its run continued.
            refuse_cancelled(record)
        if record.held_now is None or not record.held_now.counts:
            return None
        publication = self._pipeline.publication.of_record(record)
        status = publication.decision.status.value if publication.decision else NOT_CHECKED
        left_behind = publication.plan.left if has_landed else 0
        return {"published": publication.is_published, "status": status, "left": left_behind}

    def _take(self, step: str, body: Callable[[], Result | None], plan: int | None = None) -> bool:
        """Take a step, time it, and log one line. Return whether it had work and succeeded.

        Args:
            step: Name of the step.
            body: Takes the step, and returns None if there is no work.
            plan: The plan of the step; None if the step itself selects it.
        """
        if self._stopped.is_set():
            return False
        begun = time.monotonic()

        def named(_: str) -> Result | None:
            with named_failures(self._app, f"{step} of {self._plan.pipeline}"):
                return body()

        result = result_or_error(self._plan.pipeline, named)
        if result is None:
            return False
        self.add(step, result, time.monotonic() - begun, plan)
        return not isinstance(result, TidemarkError)

    def add(
        self, step: str, result: Result | TidemarkError, seconds: float, plan: int | None = None
    ) -> None:
        """Store the result or the error of a step, and log one line."""
        values, code = outcome(result)
        self.steps.append({"step": step, "plan": plan, **values, "seconds": round(seconds, 2)})
        self.codes.append(code)
        level = logging.WARNING if isinstance(result, TidemarkError) else logging.INFO
        known = {key: self.steps[-1].get(key) for key in _LOGGED}
        log.log(level, "step ended %s", LogFields({"pipeline": self._plan.pipeline, **known}))


# -- failures of Spark ---------------------------------------------------------------------------


@contextmanager
def named_failures(app: App, operation: str) -> Iterator[None]:
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
            location=app.layout.lakehouse,
            settings={LOG_FOLDER: str(app.layout.logs)},
            may_have_values=True,
        ) from None

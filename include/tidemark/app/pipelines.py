"""The use cases of `Pipeline` for several pipelines at once: plan, execute, decode, merge.

An error of one pipeline does not stop the others. The command line prints the outcomes; an Airflow
task succeeds or fails according to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from tidemark.app.app import App
from tidemark.app.run import applications, identity
from tidemark.app.steps import Ref, Result, outcome
from tidemark.bronze.ingest.ledgers import recorded_plan
from tidemark.bronze.ingest.planner import PlanOutcome, PlanResult
from tidemark.core.errors import ExitCode, TerminalError, TidemarkError
from tidemark.core.parallel import PLANNING_THREADS, map_in_threads
from tidemark.core.plan import Plan, PlanRef
from tidemark.core.texts import counted
from tidemark.spark.engine import JobRun
from tidemark.spark.errors import EngineStopped
from tidemark.spec.ref import DecodeRef, MergeRef, PipelineRef, Replay

if TYPE_CHECKING:
    from tidemark.app.pipeline import Pipeline
    from tidemark.ops.maintenance.service import Maintenance

T = TypeVar("T")

Planned: TypeAlias = tuple[list[Plan], "Outcomes"]
"""The plans to execute, and the outcomes of the pipelines without one."""


@dataclass(kw_only=True)
class Outcomes:
    """Results and named errors of pipelines.

    Attributes:
        records: A record for each plan, merge or refused pipeline, in order: `pipeline`, `plan`,
            and the values of the result or of the error.
        codes: The exit codes.
        failures: The errors of jobs that ended abnormally, such as a killed Spark process.
    """

    records: list[Result] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    failures: list[TidemarkError] = field(default_factory=list)

    @classmethod
    def of(cls, results: Mapping[str, Result | TidemarkError]) -> Self:
        """Return the outcomes of pipelines from their results and errors."""
        outcomes = cls()
        for name, each in results.items():
            outcomes.add(name, each)
        return outcomes

    @property
    def exit_code(self) -> ExitCode:
        """The worst exit code."""
        return ExitCode(ExitCode.worst(self.codes))

    @property
    def by_pipeline(self) -> Mapping[str, Result]:
        """The last record of each pipeline."""
        return {record["pipeline"]: record for record in self.records}

    def add(self, pipeline: str, result_or_error: Result | TidemarkError) -> None:
        """Add the result or the error of a pipeline that needs no job."""
        result, code = outcome(result_or_error)
        self.records.append({"pipeline": pipeline, "plan": None, **result})
        self.codes.append(code)

    def successes(self, found: Mapping[str, T | TidemarkError]) -> dict[str, T]:
        """Add the named errors of pipelines, and return the results of the others."""
        results = {}
        for name, each in found.items():
            if isinstance(each, TidemarkError):
                self.add(name, each)
            else:
                results[name] = each
        return results

    def add_landed(self, plan: PlanRef) -> None:
        """Add the result of a plan that an earlier attempt has landed; lineage needs it."""
        self.add(plan.pipeline, {"plan": plan.sequence, "wrote": False})

    def extend(self, others: Outcomes) -> None:
        """Add all of some other outcomes."""
        self.records += others.records
        self.codes += others.codes
        self.failures += others.failures


def for_each(
    app: App,
    names: Sequence[str],
    use_case: Callable[[Pipeline], T],
    find: Callable[[App, str], Pipeline] = App.pipeline,
) -> dict[str, T | TidemarkError]:
    """Return the result or the named error of a use case of each pipeline.

    Args:
        app: Tidemark.
        names: The pipelines; with `App.pipeline_of` also tables such as `prices@typed`.
        use_case: The use case.
        find: Returns the pipeline of a name.

    Raises:
        SpecError: The folder of specs does not exist.
    """
    # An unreadable folder is an error of all pipelines.
    _ = app.specs
    found = map_in_threads(names, lambda name: use_case(find(app, name)), PLANNING_THREADS)
    return dict(zip(names, found, strict=True))


def plan_each(
    app: App,
    names: Sequence[str],
    next_plan: Callable[[Pipeline], PlanResult],
    progress: Callable[[str], None],
) -> Planned:
    """Record the next plan of each pipeline, or find its recorded one. Starts no Spark.

    Args:
        app: Tidemark.
        names: The pipelines.
        next_plan: Plans one pipeline.
        progress: Called with a line for each plan.
    """
    plans, outcomes = [], Outcomes()
    for name, result in for_each(app, names, next_plan).items():
        if isinstance(result, TidemarkError):
            outcomes.add(name, result)
        elif result.plan is None:
            outcomes.add(name, {"outcome": result.outcome.value})
        else:
            plan = result.plan
            size = counted(plan.size, "offset")
            progress(f"{name}: plan {plan.sequence} ({result.outcome}): {size}")
            plans.append(plan)
    return plans, outcomes


def maintain_each(
    tables: Iterable[Maintenance],
    retention: timedelta,
    *,
    dry_run: bool = False,
    print_line: Callable[[str], None] = lambda _: None,
    show_done: Callable[[int, int], None] = lambda _done, _total: None,
) -> Outcomes:
    """Maintain tables one after the other, each as `Maintenance.maintain` does.

    Args:
        tables: The tables.
        retention: How long old versions remain readable.
        dry_run: Only return the files to remove.
        print_line: Called with the outcome of each maintained table.
        show_done: Called with the number of finished tables and of all tables.
    """
    by_name = {each.name: each for each in tables}
    names = list(by_name)

    def maintain(name: str) -> Result:
        show_done(names.index(name), len(names))
        result = by_name[name].maintain(retention, dry_run=dry_run)
        print_line(f"{name}: {result.outcome.value}")
        return result.as_record()

    return Outcomes.of(dict(zip(names, map_in_threads(names, maintain, 1), strict=True)))


def result_of(record: Result) -> dict[str, Any]:
    """Return the result in a record of `Outcomes`, without the pipeline and the plan."""
    return {key: value for key, value in record.items() if key not in ("pipeline", "plan")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """Some pipelines of a home.

    Attributes:
        app: Tidemark.
        names: The pipelines, as texts of `PipelineRef`.
        run: Runs a job for plans, merges or decodes of pipelines with the same Spark settings.
        progress: Called with each line about progress.
    """

    app: App
    names: Sequence[str]
    run: Callable[[str, Sequence[Ref]], JobRun]
    progress: Callable[[str], None]

    def execute(self, job: str, refs: Sequence[Ref]) -> Outcomes:
        """Run a job for plans, merges or decodes of different pipelines, and wait for it.

        Those of pipelines with the same Spark settings share an application. A job that ends with
        exit code 0 without a result of a plan has failed for that plan; a retry can succeed.
        """
        outcomes = Outcomes()
        for together in applications(self.app, refs):
            done = self.run(job, together)
            results = done.results or []
            without = [ref for ref in together if not _has_result(ref, results)]
            failure = done.failure
            if without and done.exit_code == ExitCode.OK:
                failure = EngineStopped(status=ExitCode.OK)
            outcomes.codes.append(failure.exit_code if failure else done.exit_code)
            if failure:
                outcomes.failures.append(failure)
                self.progress(failure.rendered("problem"))
            outcomes.records += results
            code = int(done.exit_code)
            ended = f"the job ended with exit code {code} and no result"
            why = failure.as_record() if failure else {"outcome": ended, "exit_code": code}
            outcomes.records += [{**identity(ref), **why} for ref in without]
        return outcomes

    def decode(self, replay: Replay | None = None) -> Outcomes:
        """Decode until the pipelines have no records left to decode.

        Args:
            replay: Records in quarantine to decode again first; None for no replay.
        """
        outcomes, refs = Outcomes(), []
        found = self._for_each_origin(lambda each: each.typed.prepare_decode(replay))
        for name, prepared in outcomes.successes(found).items():
            if prepared.needs_spark:
                self.progress(f"{name}: records are left to decode")
                refs.append(DecodeRef(pipeline=name, replay=replay))
            elif prepared.done.removed:
                outcomes.add(name, prepared.done.as_record())
            else:
                outcomes.add(name, {"outcome": PlanOutcome.NOTHING.value})
        outcomes.extend(self.execute("decode", refs))
        return outcomes

    def land_chunk(
        self, requested_by: str, number: int, planned: Callable[[int, Plan], None]
    ) -> tuple[Outcomes, TerminalError | None]:
        """Plan and land one chunk of a backfill of the only pipeline; skip a landed chunk.

        An open plan of another chunk lands first. If it fails, the chunk is not planned.

        Args:
            requested_by: The requester of the backfill.
            number: Chunk number, from 1.
            planned: Called with the number and the plan of the chunk before the plan lands.

        Returns:
            Outcomes of an open plan of another chunk and of the chunk's plan. They have no records
            if no offset of the chunk is left to land. The second value is the error of a chunk
            that could not be planned, which leaves no open plan; otherwise None.

        Raises:
            KafkaUnavailable and so on: A transient error of `Backfills.plan_chunk`.
        """
        (name,) = self.names
        backfills, outcomes = self.app.pipeline(name).backfills, Outcomes()
        if other := backfills.open_plan_of_other_chunk(requested_by, number):
            self.progress(f"{name}: plan {other.sequence} of another chunk lands first")
            outcomes = self.execute("ingest", [other.ref])
            if outcomes.exit_code != ExitCode.OK:
                return outcomes, None
        try:
            plan = backfills.plan_chunk(requested_by, number).plan
        except TerminalError as refusal:
            return outcomes, refusal
        if plan is None:
            return outcomes, None
        if recorded_plan(self.app.control, name, plan.sequence).held_now is None:
            planned(number, plan)
            outcomes.extend(self.execute("ingest", [plan.ref]))
        else:
            outcomes.add_landed(plan.ref)
        return outcomes, None

    def upsert(self) -> Outcomes:
        """Merge the missing records into the upsert table of each pipeline."""
        outcomes, refs = Outcomes(), []
        found = self._for_each_origin(lambda each: each.upsert.planner.next())
        for origin, merge in outcomes.successes(found).items():
            if merge is None:
                outcomes.add(origin, {"outcome": PlanOutcome.NOTHING.value})
            else:
                refs.append(MergeRef(pipeline=origin, version=merge.version))
        outcomes.extend(self.execute("upsert", refs))
        return outcomes

    def _for_each_origin(self, use_case: Callable[[Pipeline], T]) -> dict[str, T | TidemarkError]:
        """Return the result or the error of a use case by pipeline; `names` may name its tables."""
        found = for_each(self.app, self.names, use_case, App.pipeline_of)
        return {PipelineRef.parse(name).name: each for name, each in found.items()}


def _has_result(ref: Ref, results: Iterable[Result]) -> bool:
    return any(identity(ref).items() <= each.items() for each in results)

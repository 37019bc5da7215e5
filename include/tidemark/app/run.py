"""Jobs: work of Spark for several plans at once, on either engine.

A job receives the pipelines and the numbers of its plans, never their ranges. It reads the plans
from the control table. The engine decides where the job runs. spark-submit starts a new process,
whose entry point in jobs/ calls `main`. On a Spark Connect server the job runs in this process and
starts no JVM.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Generic, TypeVar

from tidemark.app import steps
from tidemark.app.app import App
from tidemark.core.errors import ExitCode, SetupError, TidemarkError
from tidemark.core.logs import LogFormat, configure_logging
from tidemark.core.parallel import map_in_threads
from tidemark.core.plan import PlanRef
from tidemark.spark.engine import Engine, JobRun, Server, ShowTasks, Stop, without_secrets
from tidemark.spark.sessions import disable_value_logging
from tidemark.spark.submit import RESULT_MARKER, application_name, plan_arguments, submit
from tidemark.spec.layout import LOG_FOLDER
from tidemark.spec.ref import MergeRef, PipelineKind, PipelineRef, ReplayRef

log = logging.getLogger(__name__)

Ref = TypeVar("Ref", PlanRef, MergeRef, ReplayRef)


@dataclass(frozen=True, slots=True)
class Job(Generic[Ref]):
    """Work on some plans, merges or replays.

    Attributes:
        parse: Returns the plan, merge or replay of a text.
        body: Does the work, and returns an outcome for each plan, in the order of the plans.
        log: Name of the logger whose progress lines are shown.
        offsets: Returns how many offsets the job reads at most; None if that is unknown.
        reads_kafka: Whether the job gets the Kafka connections of its pipelines.
        reads_registry: Whether the job gets the connections of its pipelines to schema registries.
    """

    parse: Callable[[str], Ref]
    body: Callable[[App, Sequence[Ref]], Sequence[steps.Outcome]]
    log: str = "tidemark"
    offsets: Callable[[App, Sequence[Ref]], int | None] = lambda _, __: None
    reads_kafka: bool = False
    reads_registry: bool = False

    @classmethod
    def of_step(
        cls,
        parse: Callable[[str], Ref],
        step: Callable[[App, Ref], steps.Result],
        at_once: Callable[[App], int] = lambda _: 1,
        offsets: Callable[[App, Sequence[Ref]], int | None] = lambda _, __: None,
        *,
        reads_kafka: bool = False,
        reads_registry: bool = False,
    ) -> Job[Ref]:
        """Return the job that takes one step for each plan. A failure does not stop the others.

        Args:
            parse: As in `Job`.
            step: The step.
            at_once: Returns how many plans take the step at the same time, in threads.
            offsets: As in `Job`.
            reads_kafka: As in `Job`.
            reads_registry: As in `Job`.
        """

        def body(app: App, plans: Sequence[Ref]) -> list[steps.Outcome]:
            def one(plan: Ref) -> steps.Result:
                with steps.named_failures(app, f"executing {plan}"):
                    return step(app, plan)

            with steps.named_failures(app, "starting Spark"):
                threads = at_once(app)
            return [steps.outcome(each) for each in map_in_threads(plans, one, threads)]

        return cls(
            *(parse, body),
            offsets=offsets,
            reads_kafka=reads_kafka,
            reads_registry=reads_registry,
        )


def _plans_at_once(app: App) -> int:
    return app.sessions.plans_at_once()


JOBS: Mapping[str, Job[Any]] = {
    # Both execute plans; only the first one gets connections to Kafka.
    "ingest": Job.of_step(
        PlanRef.parse, steps.ingest, _plans_at_once, steps.offsets_of, reads_kafka=True
    ),
    "decode": Job.of_step(PlanRef.parse, steps.ingest, _plans_at_once, steps.offsets_of),
    "check": Job.of_step(PlanRef.parse, steps.check, offsets=steps.offsets_of),
    "upsert": Job.of_step(MergeRef.parse, steps.upsert),
    "replay_preview": Job.of_step(ReplayRef.parse, steps.preview_replay, reads_registry=True),
    "run": Job(
        *(PlanRef.parse, steps.complete, steps.__name__, steps.offsets_of_run),
        reads_kafka=True,
        # It plans the decodes, which resolves schema ids.
        reads_registry=True,
    ),
}
"""The jobs, by the name of their entry point in jobs/."""


# -- both engines --------------------------------------------------------------------------------


def run(
    app: App,
    engine: Engine,
    job: str,
    plans: Sequence[Ref],
    print_line: Callable[[str], None],
    stop: Stop | None = None,
    show_tasks: ShowTasks | None = None,
) -> JobRun:
    """Run a job on an engine and wait for it.

    Args:
        app: Has the connections of the plans' pipelines.
        engine: Where the job runs.
        job: One of `JOBS`.
        plans: At least one plan, of pipelines with the same Spark settings.
        print_line: Called with each line that a job by spark-submit prints.
        stop: Ends the job when it is called: Spark executes no statement of the job after that.
            Before the start of the job, `run` raises EngineStopped.
        show_tasks: Called with the numbers of finished and of all known Spark tasks; None to show
            no progress.
    """
    stop = stop or Stop()
    stop.check()
    if isinstance(engine, Server):
        return _on_server(app, engine, JOBS[job], plans, stop, show_tasks)
    return submit(
        app.layout.jobs / f"{job}.py",
        plan_arguments(plans),
        name=application_name(job, plans),
        engine=engine,
        settings=app.engines.submit_settings(
            app.spec(plans[0].pipeline), _offsets(app, JOBS[job], plans)
        ),
        environ={
            **without_secrets(app.environ),
            **_connection_variables(app, JOBS[job], plans),
        },
        print_line=print_line,
        stop=stop,
        show_tasks=show_tasks,
    )


def _on_server(
    app: App,
    server: Server,
    job: Job[Ref],
    plans: Sequence[Ref],
    stop: Stop,
    show_tasks: ShowTasks | None,
) -> JobRun:
    from tidemark.spark.connect import connect_sessions
    from tidemark.spark.settings import WRITE_OPTIONS

    try:
        with (
            _job_log(job),
            connect_sessions(
                server,
                app.spec(plans[0].pipeline).spark,
                write_options=WRITE_OPTIONS,
                own_settings={LOG_FOLDER: str(app.layout.logs)},
                show_tasks=show_tasks,
            ) as sessions,
            stop.ends(sessions.close),
        ):
            results, code = execute(replace(app, sessions=sessions), job, plans)
    except TidemarkError as refused:
        results, code = _refused(plans, refused)
    return JobRun(exit_code=ExitCode(code), results=results)


def execute(app: App, job: Job[Ref], plans: Sequence[Ref]) -> tuple[list[steps.Result], int]:
    """Run a job in this process, on the sessions of the app.

    Returns:
        The result or the named error of each plan, and the worst exit code.
    """
    try:
        outcomes = job.body(app, plans)
    except TidemarkError as refused:
        outcomes = [steps.outcome(refused) for _ in plans]
    results = [_record(plan, result) for plan, (result, _) in zip(plans, outcomes, strict=True)]
    return results, ExitCode.worst(code for _, code in outcomes)


def _refused(plans: Sequence[Ref], error: TidemarkError) -> tuple[list[steps.Result], int]:
    return [_record(plan, error.as_record()) for plan in plans], error.exit_code


def _record(ref: PlanRef | MergeRef | ReplayRef, result: steps.Result) -> steps.Result:
    return {**identity(ref), **result}


def identity(ref: PlanRef | MergeRef | ReplayRef) -> steps.Result:
    """Return the values that identify a plan or a merge in results."""
    number = {"plan": ref.sequence} if isinstance(ref, PlanRef) else {}
    return {"pipeline": ref.pipeline, **number}


def tables_of(refs: Iterable[PlanRef | MergeRef | ReplayRef]) -> list[str]:
    """Return the tables of some plans, merges and replays, as texts of `PipelineRef`."""
    return [
        str(PipelineRef(ref.pipeline, PipelineKind.UPSERT))
        if isinstance(ref, MergeRef)
        else ref.pipeline
        for ref in refs
    ]


def applications(app: App, plans: Iterable[Ref]) -> list[list[Ref]]:
    """Return the plans that can share a Spark application: their Spark settings are equal."""
    together: dict[frozenset[tuple[str, str]], list[Ref]] = {}
    for plan in plans:
        settings = frozenset(app.spec(plan.pipeline).spark.items())
        together.setdefault(settings, []).append(plan)
    return list(together.values())


def _offsets(app: App, job: Job[Ref], plans: Sequence[Ref]) -> int | None:
    """Return how many offsets a job reads at most; None if that is unknown.

    The number only tunes the JVM. The job reports the error of a plan that cannot be read.
    """
    try:
        return job.offsets(app, plans)
    except TidemarkError as error:
        log.info("size of the job unknown error=%s message=%s", type(error).__name__, error)
        return None


def _connection_variables(app: App, job: Job[Ref], plans: Sequence[Ref]) -> dict[str, str]:
    """Return the connections that a job needs as environment variables, with secrets.

    The result omits undefined connections: the job refuses the plans that need them. It omits the
    Kafka connections of typed tables, which are decoded without Kafka.
    """
    specs = [app.spec(table) for table in tables_of(plans)]
    needed = [spec.connection for spec in specs if job.reads_kafka and spec.reads_kafka]
    decoded = [spec.decode for spec in specs if job.reads_registry and spec.decode]
    needed += [decode.registry for decode in decoded if decode.framed_parts]
    return app.connections.variables(needed)


@contextmanager
def _job_log(job: Job[Any]) -> Iterator[None]:
    """Log the progress of a job, even if the log level is WARNING."""
    ours = logging.getLogger(job.log)
    before = ours.level
    ours.setLevel(min(ours.getEffectiveLevel(), logging.INFO))
    try:
        yield
    finally:
        ours.setLevel(before)


# -- by spark-submit -----------------------------------------------------------------------------


def main(job: Job[Any], description: str, argv: Sequence[str] | None = None) -> int:
    """Run an entry point of jobs/ under spark-submit and return the worst exit code of its plans.

    Prints the results of all plans as one line of JSON after `RESULT_MARKER`.

    Args:
        job: The job.
        description: The text of `--help`.
        argv: The command line without the program; None for the command line of this process.
    """
    plans = _parse(job, description, argv)
    _prefer_installed_pyspark()
    app = App.from_environment()
    try:
        configure_logging(LogFormat.of(app.environ))
    except SetupError as refused:
        results, code = _refused(plans, refused)
    else:
        disable_value_logging()
        with _job_log(job):
            results, code = execute(app, job, plans)
    sys.stdout.write(f"{RESULT_MARKER}{json.dumps(results)}\n")
    sys.stdout.flush()
    return code


def _prefer_installed_pyspark() -> None:
    """Remove the PySpark archive of the installed PySpark from the import path.

    spark-submit puts the archive first. Python caches no bytecode of an archive, so every job would
    compile PySpark. The archive of another Spark installation stays, because it matches its JVM.
    """
    try:
        installed = Path(str(distribution("pyspark").locate_file("pyspark/python/lib")))
    except PackageNotFoundError:
        return
    sys.path[:] = [entry for entry in sys.path if Path(entry).parent != installed]


def _parse(job: Job[Ref], description: str, argv: Sequence[str] | None) -> tuple[Ref, ...]:
    def parse(text: str) -> Ref:
        try:
            return job.parse(text)
        except ValueError as wrong:
            raise argparse.ArgumentTypeError(f"expected {wrong}") from None

    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--plan",
        required=True,
        action="append",
        type=parse,
        metavar="PIPELINE=NUMBER",
        help="a recorded plan; repeat it for several",
    )
    return tuple(parser.parse_args(argv).plan)

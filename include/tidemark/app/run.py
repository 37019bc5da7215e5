"""Jobs: Spark work for several plans at once, on either engine.

A job receives the pipelines and the numbers of its plans, never their ranges. It reads the plans
from the control table. A decode receives pipelines, and selects records in quarantine by partition
and reason.

The engine decides where the job runs. spark-submit starts a new process, whose entry point in jobs/
calls `main`. On a Spark Connect server, the job runs in this process and starts no JVM.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from tidemark.app.app import App
from tidemark.app.steps import (
    JOBS,
    AnyRef,
    Ref,
    Result,
    complete,
    offsets_of,
    offsets_of_run,
    outcome,
)
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.logs import LogFormat, configure_logging
from tidemark.core.plan import PlanRef
from tidemark.spark.engine import Engine, JobRun, Server, ShowTasks, Stop
from tidemark.spark.sessions import Sessions, disable_value_logging
from tidemark.spark.submit import (
    RESULT_MARKER,
    application_name,
    job_arguments,
    option_of,
    submit,
)
from tidemark.spec.layout import LOG_FOLDER
from tidemark.spec.ref import DecodeRef, MergeRef

log = logging.getLogger(__name__)


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
        return _on_server(app, engine, job, plans, stop, show_tasks)
    return submit(
        app.layout.jobs / f"{job}.py",
        job_arguments(plans),
        name=application_name(job, plans),
        engine=engine,
        settings=app.engines.submit_settings(
            app.spec(plans[0].pipeline), _offsets(app, job, plans)
        ),
        environ={
            **app.engines.application_environment(),
            **_connection_variables(app, job, plans),
        },
        print_line=print_line,
        stop=stop,
        show_tasks=show_tasks,
    )


def _on_server(
    app: App,
    server: Server,
    job: str,
    plans: Sequence[Ref],
    stop: Stop,
    show_tasks: ShowTasks | None,
) -> JobRun:
    from tidemark.spark.connect import connect_sessions
    from tidemark.spark.settings import WRITE_OPTIONS

    @contextmanager
    def connected() -> Iterator[Sessions]:
        with (
            connect_sessions(
                server,
                app.spec(plans[0].pipeline).spark,
                write_options=WRITE_OPTIONS,
                own_settings={LOG_FOLDER: str(app.layout.logs)},
                show_tasks=show_tasks,
            ) as sessions,
            stop.ends(sessions.close),
        ):
            yield sessions

    results, code = execute(app, job, plans, connected())
    return JobRun(exit_code=code, results=results)


def execute(
    app: App, job: str, plans: Sequence[Ref], sessions: AbstractContextManager[Sessions]
) -> tuple[list[Result], ExitCode]:
    """Run a job in this process.

    Returns:
        The result or the named error of each plan, and the worst exit code.
    """
    try:
        with _job_log(job), sessions as opened:
            outcomes = JOBS[job].outcomes(app, opened, plans)
    except TidemarkError as refused:
        outcomes = [outcome(refused)] * len(plans)
    pairs = zip(plans, outcomes, strict=True)
    results: list[Result] = [{**identity(plan), **each} for plan, (each, _) in pairs]
    return results, ExitCode(ExitCode.worst(code for _, code in outcomes))


def identity(ref: AnyRef) -> Result:
    """Return the values that identify a plan, a merge or a decode in results."""
    number = {"plan": ref.sequence} if isinstance(ref, PlanRef) else {}
    return {"pipeline": ref.pipeline, **number}


def applications(app: App, plans: Iterable[Ref]) -> list[list[Ref]]:
    """Return the plans that can share a Spark application: their Spark settings are equal."""
    together: dict[frozenset[tuple[str, str]], list[Ref]] = {}
    for plan in plans:
        settings = frozenset(app.spec(plan.pipeline).spark.items())
        together.setdefault(settings, []).append(plan)
    return list(together.values())


def _offsets(app: App, job: str, plans: Sequence[Ref]) -> int | None:
    """Return how many offsets a job reads at most; None if that is unknown.

    The number only tunes the JVM. The job reports the error of a plan that cannot be read.
    """
    try:
        return (offsets_of_run if JOBS[job].take_all else offsets_of)(app, plans)
    except TidemarkError as error:
        log.info("size of the job unknown error=%s message=%s", type(error).__name__, error)
        return None


def _connection_variables(app: App, job: str, plans: Sequence[Ref]) -> dict[str, str]:
    """Return the connections that a job needs as environment variables, with secrets.

    The result omits undefined connections: the job refuses the plans that need them.
    """
    step, specs = JOBS[job], [app.spec(plan.pipeline) for plan in plans]
    needed = [spec.connection for spec in specs if step.reads_kafka]
    decoded = [spec.decode for spec in specs if step.reads_registry and spec.decode]
    needed += [decode.registry for decode in decoded if decode.framed_parts]
    return app.connections.variables(needed)


@contextmanager
def _job_log(job: str) -> Iterator[None]:
    """Log the progress of a job, even if the log level is WARNING."""
    # A run of all steps shows one line for each step.
    ours = logging.getLogger(complete.__module__ if JOBS[job].take_all else "tidemark")
    before = ours.level
    ours.setLevel(min(ours.getEffectiveLevel(), logging.INFO))
    try:
        yield
    finally:
        ours.setLevel(before)


# -- by spark-submit -----------------------------------------------------------------------------


def main(job: str, description: str, argv: Sequence[str] | None = None) -> int:
    """Run an entry point of jobs/ under spark-submit and return the worst exit code of its plans.

    Prints the results of all plans as one line of JSON after `RESULT_MARKER`.

    Args:
        job: One of `JOBS`.
        description: The text of `--help`.
        argv: The command line without the program; None for the command line of this process.
    """
    plans = _parse(job, description, argv)
    _prefer_installed_pyspark()
    app = App.from_environment()

    @contextmanager
    def application() -> Iterator[Sessions]:
        configure_logging(LogFormat.of(app.environ))
        disable_value_logging()
        yield app.sessions

    results, code = execute(app, job, plans, application())
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


def _parse(job: str, description: str, argv: Sequence[str] | None) -> tuple[Any, ...]:
    kind = JOBS[job].kind
    form, meaning = {
        PlanRef: ("PIPELINE=NUMBER", "a recorded plan"),
        MergeRef: ("PIPELINE=VERSION", "the version of the typed table to merge"),
        DecodeRef: ("PIPELINE[=REPLAY]", "a pipeline; 3/malformed replays records in quarantine"),
    }[kind]

    def parse(text: str) -> Any:
        try:
            return kind.parse(text)
        except ValueError as wrong:
            raise argparse.ArgumentTypeError(f"expected {wrong}") from None

    parser = argparse.ArgumentParser(
        description=description,
        epilog="docs/reference/cli.md lists the exit codes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        option_of(kind),
        dest="refs",
        required=True,
        action="append",
        type=parse,
        metavar=form,
        help=f"{meaning}; repeat it for several",
    )
    return tuple(parser.parse_args(argv).refs)

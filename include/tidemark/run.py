"""Jobs: what Spark does for several plans at once, on either engine.

A job gets the pipelines and the numbers of its plans, never their ranges. It reads the plans from
the control table. The engine decides where it runs. By spark-submit it is a process of its
own, whose entry point in jobs/ calls `main`; on a Spark Connect server it runs in this process, and
no JVM is started.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, TypeAlias

from tidemark.core.layout import LOG_FOLDER
from tidemark.core.plan import PlanRef
from tidemark.errors import ExitCode, TidemarkError
from tidemark.services.quality import raise_if_failed
from tidemark.services.together import each_apart
from tidemark.spark.engine import Engine, JobRun, Server, Stop
from tidemark.spark.sessions import log_no_values
from tidemark.spark.submit import RESULT_MARKER, application_name, plan_arguments, submit
from tidemark.wiring import App

Result: TypeAlias = Mapping[str, Any]
Body: TypeAlias = Callable[[App, PlanRef], Result]


@dataclass(frozen=True, slots=True)
class Job:
    """What is done with each plan.

    Attributes:
        body: Does one plan and says what came of it.
        at_once: How many plans are done at the same time, in threads.
    """

    body: Body
    at_once: Callable[[App], int] = lambda _: 1


def ingest(app: App, plan: PlanRef) -> Result:
    """Execute a plan and say what landed."""
    done = app.ingest(plan.pipeline).execute(plan.sequence)
    quarantined = app.quarantined(plan)
    return {
        "wrote": done.wrote,
        "records": done.landing.records,
        **({} if quarantined is None else {"quarantined": quarantined}),
        "table_version": done.landing.table_version,
        "partitions": done.landing.by_partition(),
    }


def quality(app: App, plan: PlanRef) -> Result:
    """Run a plan's checks, keep the results, and fail on a critical one."""
    report = app.quality(plan.pipeline).check(plan.sequence)
    raise_if_failed(report)
    return {
        "verdict": report.verdict.value,
        "checks": len(report.results),
        "data_docs": report.data_docs,
    }


def upsert(app: App, plan: PlanRef) -> Result:
    """Merge what is missing and say what it was.

    The plan's number is the version of the typed table that the table of latest rows will show at
    least; it shows the newest one when the job gets to it.
    """
    merge = app.merge(plan.pipeline)
    return merge.as_record() if merge else {"how": "nothing to do"}


JOBS: Mapping[str, Job] = {
    "ingest": Job(ingest, at_once=lambda app: app.sessions.plans_at_once()),
    "quality": Job(quality),
    "upsert": Job(upsert),
}
"""The jobs, by the name of their entry point in jobs/."""


# -- both engines --------------------------------------------------------------------------------


def run(
    app: App,
    engine: Engine,
    job: str,
    plans: Sequence[PlanRef],
    say: Callable[[str], None],
    stop: Stop | None = None,
) -> JobRun:
    """Run a job on an engine and wait for it.

    Args:
        app: Has the connections of the plans' pipelines.
        engine: Where it runs.
        job: One of `JOBS`.
        plans: At least one plan, of pipelines with the same Spark settings.
        say: Called with each line that a job by spark-submit prints.
        stop: Ends the job when it is called: no statement of Spark goes on after it.

    Raises:
        SetupError: There is no spark-submit.
        EngineStopped: It was stopped before it began.
    """
    stop = stop or Stop()
    stop.check()
    if isinstance(engine, Server):
        return _on_server(app, engine, JOBS[job], plans, stop)
    return submit(
        app.layout.jobs / f"{job}.py",
        plan_arguments(plans),
        name=application_name(job, plans),
        engine=engine,
        settings=app.spark_settings(app.spec(plans[0].pipeline), plans),
        environ={**app.environ, **app.kafka_variables(plans)},
        say=say,
        stop=stop,
    )


def _on_server(app: App, server: Server, job: Job, plans: Sequence[PlanRef], stop: Stop) -> JobRun:
    try:
        with (
            _job_log(),
            app.on_server(server, plans[0].pipeline) as (connected, interrupt),
            stop.ends(interrupt),
        ):
            results, code = execute(connected, job, plans)
    except TidemarkError as refused:
        results, code = [_record(plan, refused) for plan in plans], refused.exit_code
    return JobRun(exit_code=ExitCode(code), results=results)


def execute(app: App, job: Job, plans: Sequence[PlanRef]) -> tuple[list[Result], int]:
    """Do a job in this process, on the sessions of the app.

    A plan that fails does not stop the others.

    Returns:
        What became of each plan, its result or its named error, and the worst exit code.
    """

    def one(plan: PlanRef) -> Result:
        with _named_failures(app, f"executing {plan}"):
            return job.body(app, plan)

    came: Sequence[Result | TidemarkError]
    try:
        with _named_failures(app, "starting Spark"):
            threads = job.at_once(app)
        came = each_apart(plans, one, threads)
    except TidemarkError as refused:
        came = [refused for _ in plans]
    codes = [each.exit_code for each in came if isinstance(each, TidemarkError)]
    results = [_record(plan, each) for plan, each in zip(plans, came, strict=True)]
    return results, ExitCode.worst(codes)


def _record(plan: PlanRef, came: Result | TidemarkError) -> Result:
    told = came.as_record() if isinstance(came, TidemarkError) else came
    return {"pipeline": plan.pipeline, "plan": plan.sequence, **told}


@contextmanager
def _named_failures(app: App, operation: str) -> Iterator[None]:
    """Raise a Spark exception that no adapter has converted as a named error."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tidemark.adapters.spark.failures import named_failure

    try:
        yield
    except (PySparkException, Py4JError) as failure:
        raise named_failure(
            failure,
            operation,
            location=app.layout.lakehouse,
            settings={LOG_FOLDER: str(app.layout.logs)},
            may_have_values=True,
        ) from None


@contextmanager
def _job_log() -> Iterator[None]:
    """Log what a job does, also where the log is for warnings."""
    ours = logging.getLogger("tidemark")
    before = ours.level
    ours.setLevel(min(ours.getEffectiveLevel(), logging.INFO))
    try:
        yield
    finally:
        ours.setLevel(before)


# -- by spark-submit -----------------------------------------------------------------------------


def main(job: Job, description: str, argv: Sequence[str] | None = None) -> int:
    """Run an entry point of jobs/ under spark-submit and return its exit code, the worst of all.

    Prints what became of each plan as one line of JSON after `RESULT_MARKER`.

    Args:
        job: The job.
        description: For `--help`.
        argv: The command line, without the program; this process's if left out.
    """
    plans = _parse(description, argv)
    _prefer_installed_pyspark()
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    log_no_values()
    with _job_log():
        results, code = execute(App.from_environment(), job, plans)
    sys.stdout.write(f"{RESULT_MARKER}{json.dumps(results)}\n")
    sys.stdout.flush()
    return code


def _prefer_installed_pyspark() -> None:
    """Remove the PySpark archive of the installed PySpark from the import path.

    spark-submit puts the archive first. Python keeps no bytecode of an archive, so every job would
    compile PySpark. The archive of another Spark installation stays: it fits that JVM.
    """
    try:
        installed = Path(str(distribution("pyspark").locate_file("pyspark/python/lib")))
    except PackageNotFoundError:
        return
    sys.path[:] = [entry for entry in sys.path if Path(entry).parent != installed]


def _parse(description: str, argv: Sequence[str] | None) -> tuple[PlanRef, ...]:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--plan",
        required=True,
        action="append",
        type=_plan,
        metavar="PIPELINE=NUMBER",
        help="a recorded plan; repeat it for several",
    )
    return tuple(parser.parse_args(argv).plan)


def _plan(text: str) -> PlanRef:
    try:
        return PlanRef.parse(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"expected {wrong}") from None

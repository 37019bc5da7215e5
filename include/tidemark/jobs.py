"""What every spark-submit entry point does: parse, call one service, turn errors into an exit code.

The ranges of a plan never travel on the command line: a job gets the pipeline's name and the
plan's number, and reads the plan from the control table.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from tidemark.adapters.spark.submit import RESULT_MARKER
from tidemark.core.layout import LOG_FOLDER
from tidemark.core.plan import PlanRef
from tidemark.errors import ExitCode, TidemarkError
from tidemark.services.together import each_apart
from tidemark.wiring import App


def run_job(
    description: str,
    body: Callable[[App, PlanRef], Mapping[str, Any]],
    argv: Sequence[str] | None = None,
    *,
    at_once: Callable[[App], int] = lambda _: 1,
) -> int:
    """Run a job's body for each plan and return the exit code, the worst of all.

    A plan that fails does not stop the others. Prints what became of each, a result or the named
    error, as one line of JSON after `RESULT_MARKER`.

    Args:
        description: For `--help`.
        body: Does one plan and says what came of it.
        argv: The command line, without the program; this process's if left out.
        at_once: How many plans are done at the same time, in threads.
    """
    plans = _parse(description, argv)
    _prefer_installed_pyspark()
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("tidemark").setLevel(logging.INFO)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # PySpark's words on a failed computation, with the values that it failed on.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    app = App.from_environment()
    outcomes = _outcomes(app, plans, body, at_once)
    _print_results(
        [
            {
                "pipeline": plan.pipeline,
                "plan": plan.sequence,
                **(came.as_record() if isinstance(came, TidemarkError) else came),
            }
            for plan, came in zip(plans, outcomes, strict=True)
        ]
    )
    return ExitCode.worst(came.exit_code for came in outcomes if isinstance(came, TidemarkError))


def _outcomes(
    app: App,
    plans: Sequence[PlanRef],
    body: Callable[[App, PlanRef], Mapping[str, Any]],
    at_once: Callable[[App], int],
) -> list[Mapping[str, Any] | TidemarkError]:
    """What became of each plan; one error for all, if Spark does not start."""

    def execute(plan: PlanRef) -> Mapping[str, Any]:
        with _named_failures(app, f"executing {plan}"):
            return body(app, plan)

    try:
        with _named_failures(app, "starting Spark"):
            threads = at_once(app)
    except TidemarkError as refused:
        return [refused for _ in plans]
    return each_apart(plans, execute, threads)


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


def _print_results(results: Sequence[Mapping[str, Any]]) -> None:
    sys.stdout.write(f"{RESULT_MARKER}{json.dumps(results)}\n")
    sys.stdout.flush()

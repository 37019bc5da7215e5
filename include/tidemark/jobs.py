"""What every spark-submit entry point does: parse, call one service, turn errors into an exit code.

The ranges of a plan never travel on the command line: a job gets the pipeline's name and the
plan's number, and reads the plan from the control table.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tidemark.adapters.spark.submit import RESULT_MARKER
from tidemark.core.plan import PlanRef
from tidemark.errors import ExitCode, TidemarkError
from tidemark.wiring import App

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What became of one plan."""

    code: ExitCode
    result: Mapping[str, Any]


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
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("tidemark").setLevel(logging.INFO)
    app = App.from_environment()
    with ThreadPoolExecutor(max_workers=at_once(app)) as threads:
        outcomes = list(threads.map(lambda plan: _outcome(app, body, plan), plans))
    _print_results([each.result for each in outcomes])
    return ExitCode.worst(each.code for each in outcomes)


def _outcome(
    app: App, body: Callable[[App, PlanRef], Mapping[str, Any]], plan: PlanRef
) -> _Outcome:
    told = {"pipeline": plan.pipeline, "plan": plan.sequence}
    try:
        return _Outcome(code=ExitCode.OK, result={**told, **body(app, plan)})
    except TidemarkError as error:
        log.error("%s: %s: %s", plan, type(error).__name__, error)
        return _Outcome(code=error.exit_code, result={**told, **error.as_record()})
    except Exception as error:
        log.exception("%s: unforeseen", plan)
        return _Outcome(code=ExitCode.CRASH, result={**told, **_crash_record(error)})


def _crash_record(error: Exception) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "retryable": ExitCode.CRASH.retryable,
        "what": "the job met an error that nobody foresaw",
        "expected": "a result or a named error",
        "found": str(error)[:500],
        "next": "try again, which is safe; the traceback is in the job's log",
    }


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

"""What every spark-submit entry point does: parse, call one service, map its error to an exit code.

The ranges of a plan never travel on the command line: a job gets the pipeline's name and the
plan's number, and reads the plan from the control table.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.adapters.spark.submit import RESULT_MARKER
from tidemark.errors import ExitCode, TidemarkError
from tidemark.wiring import App

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a job is told.

    Attributes:
        pipeline: Pipeline name.
        plan: Plan number.
    """

    pipeline: str
    plan: int


def run_job(
    description: str,
    body: Callable[[App, Arguments], Mapping[str, Any]],
    argv: Sequence[str] | None = None,
) -> int:
    """Run a job's body and return its exit code.

    Prints the result, or the named error, as one line of JSON after `RESULT_MARKER`.
    """
    arguments = _parse(description, argv)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("tidemark").setLevel(logging.INFO)
    try:
        result = body(App.from_environment(), arguments)
    except TidemarkError as error:
        log.error("%s: %s", type(error).__name__, error)
        _print_result(error.as_record())
        return error.exit_code
    _print_result(result)
    return ExitCode.OK


def _parse(description: str, argv: Sequence[str] | None) -> Arguments:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pipeline", required=True, help="name of a pipeline spec")
    parser.add_argument("--plan", required=True, type=int, help="number of a recorded plan")
    parsed = parser.parse_args(argv)
    return Arguments(pipeline=parsed.pipeline, plan=parsed.plan)


def _print_result(result: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{RESULT_MARKER}{json.dumps(result)}\n")
    sys.stdout.flush()

"""Running a job's entry point under spark-submit, as the DAGs do, from the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.errors import EngineStopped, ExitCode, SetupError

RESULT_MARKER = "TIDEMARK_RESULT "
"""Begins the one line of standard output that carries a job's results, a JSON list by plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """How a job ended.

    Attributes:
        exit_code: One of `ExitCode`.
        results: The job's report on each plan; None if it ended before its report.
        stopped: The error for another exit code of spark-submit; None for the codes of jobs.
    """

    exit_code: ExitCode
    results: Sequence[Mapping[str, Any]] | None
    stopped: EngineStopped | None = None


def submit(
    script: Path,
    arguments: list[str],
    *,
    name: str,
    master: str,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> JobRun:
    """Run a job in client mode and wait for it.

    Args:
        script: The entry point.
        arguments: Its command line; carries no secret.
        name: Of the Spark application.
        master: Spark master URL.
        settings: `--conf` settings; carry no secret.
        environ: Environment of the driver: this is where connections travel.
        say: Called with each line the job prints, its result line excepted.

    Raises:
        SetupError: There is no spark-submit.
    """
    program = shutil.which("spark-submit", path=search_path(environ))
    if program is None:
        raise SetupError(
            subject="spark-submit is missing",
            needed="the spark-submit of requirements.txt on the PATH",
            seen="none",
            advice="run `make setup`, and call tidemark from .venv/bin",
        )
    options = ["--name", name, "--master", master, *conf_arguments(settings)]
    process = subprocess.Popen(
        [program, *options, str(script), *arguments],
        env={**environ, "PATH": search_path(environ)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    results = None
    with process:
        for line in process.stdout or ():
            if line.startswith(RESULT_MARKER):
                # A line that was cut short is no result; the exit code says how the job ended.
                with suppress(ValueError):
                    results = json.loads(line.removeprefix(RESULT_MARKER))
            else:
                say(line.rstrip("\n"))
    stopped = stopped_by(process.returncode)
    code = stopped.exit_code if stopped else ExitCode(process.returncode)
    return JobRun(exit_code=code, results=results, stopped=stopped)


def stopped_by(exit_code: int) -> EngineStopped | None:
    """The error for an exit code of spark-submit that no job returns; None for the others."""
    return None if exit_code in set(ExitCode) else EngineStopped(status=exit_code)


def conf_arguments(settings: Mapping[str, str]) -> list[str]:
    """Settings as arguments of spark-submit."""
    return [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]


def search_path(environ: Mapping[str, str]) -> str:
    """The PATH for spark-submit, which runs the first Python on it: this one, with its PySpark."""
    return f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"

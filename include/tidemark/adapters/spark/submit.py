"""Running a job's entry point under spark-submit, as the DAGs do, from the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.errors import ExitCode, SetupError

RESULT_MARKER = "TIDEMARK_RESULT "
"""Begins the one line of standard output that carries a job's result as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """How a job ended.

    Attributes:
        exit_code: What spark-submit returned; `ExitCode` values mean what they say.
        result: What the job said of itself; None if it died before it could.
    """

    exit_code: int
    result: Mapping[str, Any] | None

    @property
    def succeeded(self) -> bool:
        """Whether the job ended well."""
        return self.exit_code == ExitCode.OK


def submit(
    script: Path,
    arguments: list[str],
    *,
    master: str,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
    say: Callable[[str], None],
) -> JobRun:
    """Run a job in client mode and wait for it.

    Args:
        script: The entry point.
        arguments: Its command line; carries no secret.
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
    process = subprocess.Popen(
        [program, "--master", master, *conf_arguments(settings), str(script), *arguments],
        env={**environ, "PATH": search_path(environ)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    result = None
    with process:
        for line in process.stdout or ():
            if line.startswith(RESULT_MARKER):
                result = json.loads(line.removeprefix(RESULT_MARKER))
            else:
                say(line.rstrip("\n"))
    return JobRun(exit_code=process.returncode, result=result)


def conf_arguments(settings: Mapping[str, str]) -> list[str]:
    """Settings as arguments of spark-submit."""
    return [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]


def search_path(environ: Mapping[str, str]) -> str:
    """The PATH for spark-submit, which runs the first Python on it: this one, with its PySpark."""
    return f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"

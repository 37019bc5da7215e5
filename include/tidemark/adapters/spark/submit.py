"""Running a job's entry point under spark-submit, as the DAGs do, from the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.errors import EngineStopped, ExitCode, SetupError, TidemarkError, Unforeseen

_LONGEST_CAUSE = 300
_WRONG_SESSION = (
    r"Could not parse Master URL.*|Invalid master URL.*|Master must either be .*"
    r"|When running with master .*|System memory \d+ must be at least \d+.*"
)
"""Messages of Spark about a master or a size of memory."""
_MISTAKE = re.compile(
    rf"(?:Error: |(?:Exception in thread \S+ )?[\w.]*SparkException: )?(?P<spark>{_WRONG_SESSION})"
    # Messages of spark-submit about its arguments, and of the shell and the JVM about Java.
    r"|Error: Unrecognized option.*|Unrecognized option: .*|JAVA_HOME is not set.*"
    r"|(?:\S+: line \d+: )?(?:exec: )?(?:\S*/)?java: "
    r"(?:(?:No such file|Permission denied|cannot execute|Exec format|command not found).*"
    r"|not found)"
    r"|\S*python\S*: can't open file .*\[Errno 2\].*"
    r"|\s*(?:Exception in thread \S+ )?java\.lang\.UnsupportedClassVersionError.*"
    r"|Error: Could not find or load main class .*|Unrecognized VM option .*"
    r"|Invalid (?:maximum|initial) heap size.*|Too small (?:maximum|initial) heap.*"
    r"|Failed to find Spark jars directory.*"
)
_PASSING = re.compile(
    r"Cannot allocate memory|Resource temporarily unavailable|Text file busy|Input/output error"
)
"""Messages of the operating system about a lack that may pass."""
_MISTAKEN = {ExitCode.CRASH, ExitCode.USAGE, 64, 78, 126, 127}
"""Exit codes of spark-submit and of shells if the job cannot start."""

RESULT_MARKER = "TIDEMARK_RESULT "
"""Begins the one line of standard output that carries a job's results, a JSON list by plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """How a job ended.

    Attributes:
        exit_code: One of `ExitCode`.
        results: The job's report on each plan; None if it ended before its report.
        stopped: The error for a job that ended without a result, or with an exit code that no job
            returns; None if the job reported its own exit code.
    """

    exit_code: ExitCode
    results: Sequence[Mapping[str, Any]] | None
    stopped: TidemarkError | None = None


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
    clues: list[str] = []
    last = ""
    with process:
        for line in process.stdout or ():
            if line.startswith(RESULT_MARKER):
                # A line that was cut short is no result; the exit code says how the job ended.
                with suppress(ValueError):
                    results = json.loads(line.removeprefix(RESULT_MARKER))
            else:
                said = line.rstrip("\n")
                say(said)
                last = said or last
                if setup_mistake(said):
                    clues.append(said)
    stopped = None
    if results is None or process.returncode not in set(ExitCode):
        stopped = stopped_by(process.returncode, [*clues, last])
    code = stopped.exit_code if stopped else ExitCode(process.returncode)
    return JobRun(exit_code=code, results=results, stopped=stopped)


def stopped_by(exit_code: int, printed: Sequence[str]) -> TidemarkError | None:
    """The error for a job that ended without a result; None for exit codes that only jobs return.

    Args:
        exit_code: Of spark-submit; negative for a signal.
        printed: Lines that spark-submit printed: all, or those with a cause and the last one.
    """
    last = next((line for line in reversed(printed) if line.strip()), "no output")
    if exit_code in _MISTAKEN:
        mistake = next(filter(None, map(setup_mistake, printed)), None)
        if mistake is None and any(map(_PASSING.search, printed)):
            return EngineStopped(status=exit_code)
        if mistake or exit_code != ExitCode.CRASH:
            return mistake or _not_started(f"exit code {exit_code}: {last.strip()}")
        return Unforeseen(kind=f"exit code {exit_code} of spark-submit", text=last.strip())
    return None if exit_code in set(ExitCode) else EngineStopped(status=exit_code)


def setup_mistake(line: str) -> SetupError | None:
    """The error for a line that Spark, a shell or the JVM prints about a wrong set-up, or None."""
    found = _MISTAKE.fullmatch(line.rstrip())
    return _not_started((found["spark"] or found[0]).strip()) if found else None


def session_mistake(message: str) -> SetupError | None:
    """The error for the message of Spark's exception about a wrong set-up, or None."""
    first = message.partition("\n")[0].rstrip()
    return _not_started(first) if re.fullmatch(_WRONG_SESSION, first) else None


def _not_started(cause: str) -> SetupError:
    return SetupError(
        subject=f"Spark cannot start: {cause[:_LONGEST_CAUSE]}",
        needed="a Spark master such as local[*] or spark://host:7077, and Java 17 or newer",
        seen=cause[:_LONGEST_CAUSE],
        advice=(
            "correct --master (for the DAGs, the connection spark_default), JAVA_HOME or the "
            "spark section of the spec; see docs/runbook.md, SetupError"
        ),
    )


def conf_arguments(settings: Mapping[str, str]) -> list[str]:
    """Settings as arguments of spark-submit."""
    return [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]


def search_path(environ: Mapping[str, str]) -> str:
    """The PATH for spark-submit, which runs the first Python on it: this one, with its PySpark."""
    return f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"

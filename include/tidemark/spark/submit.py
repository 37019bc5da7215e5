"""Running a job's entry point under spark-submit, as the DAGs do, from the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidemark.core.errors import ExitCode, SetupError, TidemarkError, Unforeseen
from tidemark.core.plan import PlanRef
from tidemark.spark.engine import JobRun, Stop, Submit, without_connect
from tidemark.spark.errors import EngineStopped
from tidemark.spec.ref import MergeRef

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


def plan_arguments(plans: Iterable[PlanRef | MergeRef]) -> list[str]:
    """Return plans as command-line arguments of a job."""
    return [part for plan in plans for part in ("--plan", str(plan))]


def application_name(job: str, plans: Sequence[PlanRef | MergeRef]) -> str:
    """Return the name of a job's Spark application."""
    others = len(plans) - 1
    return f"tidemark-{job}-{plans[0].pipeline}{f'-and-{others}-more' if others else ''}"


def submit(
    script: Path,
    arguments: list[str],
    *,
    name: str,
    engine: Submit,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
    say: Callable[[str], None],
    stop: Stop | None = None,
) -> JobRun:
    """Run a job in client mode and wait for it.

    Args:
        script: The entry point.
        arguments: Its command line; carries no secret.
        name: Of the Spark application.
        engine: The master and the program.
        settings: `--conf` settings; carry no secret.
        environ: Environment of the driver: this is where connections travel.
        say: Called with each line the job prints, its result line excepted.
        stop: Kills the job when it is called.

    Raises:
        SetupError: There is no spark-submit.
    """
    path = search_path(environ)
    program = shutil.which(engine.binary, path=path)
    if program is None:
        raise SetupError(
            subject=f"{engine.binary} cannot be started",
            needed="the spark-submit of requirements.txt on the PATH",
            seen="no such program",
            advice="run `make setup`, and call tidemark from .venv/bin; for the DAGs, install "
            "requirements.txt in the environment that Airflow runs in",
        )
    options = ["--name", name, "--master", engine.master, "--deploy-mode", "client"]
    process = subprocess.Popen(
        [
            *(program, *options, *conf_arguments({**engine.settings, **settings})),
            *(str(script), *arguments),
        ],
        env={**without_connect(environ), "PATH": path, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    results = None
    clues: list[str] = []
    last = ""
    with process, (stop or Stop()).ends(process.kill):
        try:
            for line in process.stdout or ():
                if line.startswith(RESULT_MARKER):
                    results = _results(line.removeprefix(RESULT_MARKER))
                else:
                    said = line.rstrip("\n")
                    say(said)
                    last = said or last
                    if setup_error_in_line(said):
                        clues.append(said)
        except BaseException:
            # Otherwise the job would run on, and no process would read its output.
            process.kill()
            raise
    failure = None
    if results is None or process.returncode not in set(ExitCode):
        failure = missing_result_error(process.returncode, [*clues, last])
    code = failure.exit_code if failure else ExitCode(process.returncode)
    return JobRun(exit_code=code, results=results, failure=failure)


def _results(text: str) -> list[Mapping[str, Any]] | None:
    """Return the results of a result line; None for a truncated line."""
    with suppress(ValueError):
        told = json.loads(text)
        named = isinstance(told, list) and all(isinstance(each, dict) for each in told)
        if named and all({"pipeline", "plan"} <= set(each) for each in told):
            return list(told)
    return None


def missing_result_error(exit_code: int, printed: Sequence[str]) -> TidemarkError | None:
    """The error for a job that ended without a result; None for exit codes that only jobs return.

    Args:
        exit_code: Of spark-submit; negative for a signal.
        printed: Lines that spark-submit printed: all, or those with a cause and the last one.
    """
    last = next((line for line in reversed(printed) if line.strip()), "no output")
    if exit_code in _MISTAKEN:
        mistake = next(filter(None, map(setup_error_in_line, printed)), None)
        if mistake is None and any(map(_PASSING.search, printed)):
            return EngineStopped(status=exit_code)
        if mistake or exit_code != ExitCode.CRASH:
            return mistake or _not_started(f"exit code {exit_code}: {last.strip()}")
        return Unforeseen(kind=f"exit code {exit_code} of spark-submit", text=last.strip())
    return None if exit_code in set(ExitCode) else EngineStopped(status=exit_code)


def setup_error_in_line(line: str) -> SetupError | None:
    """The error for a line that Spark, a shell or the JVM prints about a wrong set-up, or None."""
    found = _MISTAKE.fullmatch(line.rstrip())
    return _not_started((found["spark"] or found[0]).strip()) if found else None


def setup_error_in_message(message: str) -> SetupError | None:
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
    return f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"

"""Runs the entry point of a job by spark-submit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tidemark.core.errors import ExitCode, SetupError, TidemarkError, Unforeseen
from tidemark.core.plan import PlanRef
from tidemark.spark.engine import JobRun, ShowTasks, Stop, Submit, without_connect
from tidemark.spark.errors import EngineStopped
from tidemark.spark.settings import local_environment, local_settings
from tidemark.spec.ref import DecodeRef, MergeRef

_LONGEST_CAUSE = 300
_SESSION_TEXT = (
    r"Could not parse Master URL.*|Invalid master URL.*|Master must either be .*"
    r"|When running with master .*|System memory \d+ must be at least \d+.*"
)
"""Messages of Spark about a master or a size of memory."""
_SETUP_MESSAGE = re.compile(
    rf"(?:Error: |(?:Exception in thread \S+ )?[\w.]*SparkException: )?(?P<spark>{_SESSION_TEXT})"
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
_TEMPORARY = re.compile(
    r"Cannot allocate memory|Resource temporarily unavailable|Text file busy|Input/output error"
)
"""Messages of the operating system about a temporary lack of a resource."""
_START_FAILURE_CODES = {ExitCode.CRASH, ExitCode.USAGE, 64, 78, 126, 127}
"""Exit codes of spark-submit and of shells if the job cannot start."""

_CONSOLE_PROGRESS = "spark.ui.showConsoleProgress"
"""The setting with which Spark prints the tasks of its running stages."""
_RUNNING_STAGE = re.compile(r"\[Stage (\d+):=*>? *\((\d+) \+ \d+\) / (\d+)\]")

RESULT_MARKER = "TIDEMARK_RESULT "
"""Prefix of the output line with the results of a job: a JSON list of results, one per plan."""


def job_arguments(refs: Iterable[PlanRef | MergeRef | DecodeRef]) -> list[str]:
    """Return plans, merges or decodes as command-line arguments of a job."""
    return [part for ref in refs for part in (option_of(type(ref)), str(ref))]


def option_of(kind: type[PlanRef | MergeRef | DecodeRef]) -> str:
    """Return the command-line option of a job's plans, merges or decodes."""
    return "--pipeline" if issubclass(kind, DecodeRef) else "--plan"


def application_name(job: str, plans: Sequence[PlanRef | MergeRef | DecodeRef]) -> str:
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
    print_line: Callable[[str], None],
    stop: Stop | None = None,
    show_tasks: ShowTasks | None = None,
) -> JobRun:
    """Run a job in client mode and return its result.

    Args:
        script: The entry point.
        arguments: Command-line arguments of the job, without secrets.
        name: Name of the Spark application.
        engine: The master and the spark-submit program.
        settings: Settings for `--conf`, without secrets.
        environ: Environment of the driver, with its connections.
        print_line: Called with each line that the job prints, except the result line.
        stop: Kills the job when called.
        show_tasks: Called with the numbers of finished and of all known Spark tasks; None to show
            no progress.

    Raises:
        SetupError: The spark-submit program is missing.
    """
    path = search_path(environ)
    program = shutil.which(engine.binary, path=path)
    if program is None:
        raise SetupError(
            finding=f"The program {engine.binary} cannot be started.",
            needed="the spark-submit of requirements.txt on the PATH",
            advice="Run `make setup`, and start tidemark from .venv/bin. For the DAGs, install "
            "requirements.txt in Airflow's environment.",
        )
    options = ["--name", name, "--master", engine.master, "--deploy-mode", "client"]
    progress = {_CONSOLE_PROGRESS: "true"} if show_tasks else {}
    all_settings = {
        **engine.settings,
        **settings,
        **progress,
        **local_settings(engine.master),
    }
    results = None
    clues: list[str] = []
    stages = _StageReader(show_tasks) if show_tasks else None
    last = ""
    with (
        local_environment(engine.master, environ, all_settings) as variables,
        subprocess.Popen(
            [program, *options, *conf_arguments(all_settings), str(script), *arguments],
            env={
                **without_connect(environ),
                "PATH": path,
                "PYSPARK_PYTHON": sys.executable,
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
        (stop or Stop()).ends(process.kill),
    ):
        try:
            for printed in process.stdout or ():
                line = stages.without_progress(printed) if stages else printed
                if not line:
                    continue
                if line.startswith(RESULT_MARKER):
                    results = _results(line.removeprefix(RESULT_MARKER))
                else:
                    text = line.rstrip("\n")
                    print_line(text)
                    last = text or last
                    if setup_error_in_line(text):
                        clues.append(text)
        except BaseException:
            # Otherwise the job would run on, and no process would read its output.
            process.kill()
            raise
    failure = None
    if results is None or process.returncode not in set(ExitCode):
        failure = missing_result_error(process.returncode, [*clues, last])
    code = failure.exit_code if failure else ExitCode(process.returncode)
    return JobRun(exit_code=code, results=results, failure=failure)


class _StageReader:
    """Counts the tasks of all stages of a job, from the lines of Spark's console progress."""

    def __init__(self, show: ShowTasks) -> None:
        self._show = show
        self._stages: dict[int, tuple[int, int]] = {}

    def without_progress(self, line: str) -> str:
        """Count the tasks of the stages in a line, and return the rest of the line.

        Spark ends its progress by a carriage return, or by blanks that overwrite it. If a later
        line lacks a stage, all tasks of the stage are finished.
        """
        running, end = {}, 0
        while found := _RUNNING_STAGE.match(line, end):
            running[int(found[1])], end = (int(found[2]), int(found[3])), found.end()
        if running:
            ended = {stage: (total, total) for stage, (_, total) in self._stages.items()}
            self._stages = {**ended, **running}
            counts = self._stages.values()
            self._show(sum(n for n, _ in counts), sum(n for _, n in counts))
        rest = line[end:]
        return rest if rest.strip() else ""


def _results(text: str) -> list[Mapping[str, Any]] | None:
    """Return the results of a result line; None for a truncated line."""
    with suppress(ValueError):
        results = json.loads(text)
        is_list = isinstance(results, list) and all(isinstance(each, dict) for each in results)
        # The result of a merge has no plan.
        if is_list and all("pipeline" in each for each in results):
            return list(results)
    return None


def missing_result_error(exit_code: int, printed: Sequence[str]) -> TidemarkError | None:
    """Return the error for a job that ended without a result; None for exit codes of jobs only.

    Args:
        exit_code: Exit code of spark-submit; negative for a signal.
        printed: Lines of spark-submit's output: all lines, or the lines with a cause and the last.
    """
    last = next((line for line in reversed(printed) if line.strip()), "no output")
    if exit_code in _START_FAILURE_CODES:
        mistake = next(filter(None, map(setup_error_in_line, printed)), None)
        if mistake is None and any(map(_TEMPORARY.search, printed)):
            return EngineStopped(status=exit_code)
        if mistake or exit_code != ExitCode.CRASH:
            return mistake or _start_error(f"exit code {exit_code}: {last.strip()}")
        return Unforeseen(kind=f"exit code {exit_code} of spark-submit")
    return None if exit_code in set(ExitCode) else EngineStopped(status=exit_code)


def setup_error_in_line(line: str) -> SetupError | None:
    """Return the error for a line of Spark, a shell or the JVM about wrong set-up, else None."""
    found = _SETUP_MESSAGE.fullmatch(line.rstrip())
    return _start_error((found["spark"] or found[0]).strip()) if found else None


def setup_error_in_message(message: str) -> SetupError | None:
    """Return the error for the message of a Spark exception about wrong set-up, else None."""
    first = message.partition("\n")[0].rstrip()
    return _start_error(first) if re.fullmatch(_SESSION_TEXT, first) else None


def _start_error(cause: str) -> SetupError:
    return SetupError(
        finding=f"Spark cannot start: {cause[:_LONGEST_CAUSE]}.",
        needed="a Spark master such as local[*] or spark://host:7077, and Java 17",
        seen=cause[:_LONGEST_CAUSE],
        advice=(
            "Correct --master (for the DAGs, the connection spark_default), JAVA_HOME or the "
            "spark section of the spec."
        ),
    )


def conf_arguments(settings: Mapping[str, str]) -> list[str]:
    """Return settings as arguments of spark-submit."""
    return [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]


def pyspark_folder() -> Path:
    """Return the folder of PySpark, without importing it.

    Raises:
        LookupError: This Python has none.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise LookupError(f"{sys.executable} has no PySpark")
    return Path(found.origin).parent


def search_path(environ: Mapping[str, str]) -> str:
    """Return a PATH on which spark-submit finds this Python, with its PySpark, first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"

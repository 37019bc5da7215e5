"""Results and errors of jobs, from the output of spark-submit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tidemark.core.errors import ExitCode, SetupError, Unforeseen
from tidemark.spark.engine import JobRun, Submit
from tidemark.spark.submit import RESULT_MARKER, submit

_RESULT = {"pipeline": "prices", "plan": 7, "records": 10}


def run_program(
    script: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    show_tasks: Callable[[int, int], None] | None = None,
    *,
    master: str = "local",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> tuple[JobRun, list[str]]:
    """Submit a job with a shell script instead of spark-submit."""
    program = folder / "spark-submit"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    lines: list[str] = []
    run = submit(
        Path("ingest.py"),
        [],
        name="job",
        engine=Submit(master),
        settings=settings,
        environ={},
        print_line=lines.append,
        show_tasks=show_tasks,
    )
    return run, lines


def test_tasks_of_stages_are_counted_and_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark prints its progress on the error output, and may print other text after it."""
    stage = r"[Stage 0:=====>     (1 + 3) / 5]"
    script = (
        rf'printf "first\n\r{stage}\r{stage}[Stage 12:>  (0 + 0) / 20]later\n" >&2'
        "\n"
        rf'printf "\r{stage}\r     \r"'
        "\n"
        rf"printf '\r{stage}{RESULT_MARKER}[{json.dumps(_RESULT)}]\n'"
        "\n"
        'echo "[Stage 1 of the pipeline]"; echo "$*"'
    )
    shown: list[tuple[int, int]] = []
    run, lines = run_program(
        script, tmp_path, monkeypatch, show_tasks=lambda *counts: shown.append(counts)
    )
    assert run.results == [_RESULT]
    assert shown == [(1, 5), (1, 25), (21, 25), (21, 25)]
    assert lines[:3] == ["first", "later", "[Stage 1 of the pipeline]"]
    assert "spark.ui.showConsoleProgress=true" in lines[3]


def test_a_job_without_a_display_prints_all_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark shows no progress in the log of a scheduled run."""
    stage = "[Stage 0:>  (0 + 4) / 5]"
    _, lines = run_program(f'echo "$*"; echo; echo "{stage}"', tmp_path, monkeypatch)
    assert "showConsoleProgress" not in lines[0]
    assert lines[1:] == ["", stage]


@pytest.mark.parametrize(
    ("master", "is_local"),
    [
        *((master, True) for master in ("local", "local[2]", "local[*]", "local[2,3]")),
        # The executors of a cluster must reach the driver, and the operator has their secret.
        *((master, False) for master in ("spark://host:7077", "local-cluster[2,1,512]", "yarn")),
        # Spark reports its own error for such a master.
        ("local[x]", False),
    ],
)
def test_local_mode_alone_authenticates_and_listens_on_the_loopback_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, *, is_local: bool
) -> None:
    """A pipeline cannot open the ports: its setting is for the executors of a cluster."""
    _, lines = run_program(
        'for each; do case $each in spark.*) echo "$each";; esac; done; echo "ip $SPARK_LOCAL_IP"',
        tmp_path,
        monkeypatch,
        master=master,
        settings={"spark.driver.host": "airflow-1"},
    )
    if is_local:
        assert lines == [
            "spark.driver.host=127.0.0.1",
            "spark.authenticate=true",
            "spark.driver.bindAddress=127.0.0.1",
            "spark.executor.killOnFatalError.depth=0",
            "spark.hadoop.fs.s3a.buffer.dir=${env.SPARK_LOCAL_DIRS}",
            "ip 127.0.0.1",
        ]
    else:
        assert lines == ["spark.driver.host=airflow-1", "ip "]


@pytest.mark.parametrize(
    ("printed", "results"),
    [
        (f"{RESULT_MARKER}[{json.dumps(_RESULT)}]", [_RESULT]),
        (f"{RESULT_MARKER}[{json.dumps(_RESULT)[:-3]}", None),
        (f'{RESULT_MARKER}[{{"pipeline": "prices"}}]', [{"pipeline": "prices"}]),
        ("", None),
    ],
    ids=["whole", "cut short", "of a merge", "none"],
)
def test_a_result_line_is_not_printed_and_a_truncated_one_is_no_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    results: list[dict[str, Any]] | None,
) -> None:
    """A driver may be killed during its output."""
    script = f"echo first\necho '{printed}'\nexit 65"
    run, lines = run_program(script, tmp_path, monkeypatch)
    assert run == JobRun(exit_code=ExitCode.REFUSED, results=results)
    assert [line for line in lines if line] == ["first"]


@pytest.mark.parametrize(
    ("end", "what"),
    [
        ("kill -KILL $$", "he Spark process was killed by signal 9, SIGKILL (out of memory?)"),
        ("kill -TERM $$", "he Spark process was killed by signal 15, SIGTERM"),
        ("exit 137", "he Spark process was killed by signal 9, SIGKILL (out of memory?)"),
        ("exit 143", "he Spark process was killed by signal 15, SIGTERM"),
        ("exit 4", "he Spark process ended with exit code 4"),
        ("exit 255", "he Spark process ended with exit code 255"),
    ],
)
def test_an_exit_code_of_no_job_is_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, what: str
) -> None:
    """A JVM adds 128 to the signal of a killed Python."""
    run, _ = run_program(end, tmp_path, monkeypatch)
    assert run.failure is not None
    assert what in run.failure.rendered("problem")
    assert run.exit_code is ExitCode.TRANSIENT


@pytest.mark.parametrize("code", [3, 52])
def test_the_error_for_a_full_heap_names_the_setting_of_the_heap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Spark printed this for values of 24 MB in a heap of 512 MB, and exited with code 52."""
    printed = (
        "19:35:41 ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0)\n"
        "org.apache.spark.SparkException [TASK_WRITE_FAILED]\n"
        "19:35:41 ERROR FileFormatWriter: Aborting job 35cbd41f-4d81-4d3d-aec9-d240d5c5a235."
    )
    run, _ = run_program(f"echo '{printed}'\nexit {code}", tmp_path, monkeypatch)
    assert run.failure is not None
    assert f"ran out of Java heap (exit code {code})" in run.failure.rendered("problem")
    assert run.failure.rendered("fix").startswith("Raise spark.driver.memory")
    assert run.exit_code is ExitCode.TRANSIENT


@pytest.mark.parametrize(
    ("end", "what"),
    [
        ("exit 126", "exit code 126: last words"),
        ("exit 127", "exit code 127: last words"),
        ("exit 64", "exit code 64: last words"),
        ("exit 78", "exit code 78: last words"),
        ("exit 2", "exit code 2: last words"),
        ("echo 'JAVA_HOME is not set'; echo; exit 1", "JAVA_HOME is not set"),
        ("echo '/x/bin/java: Permission denied'; exit 1", "/x/bin/java: Permission denied"),
        ("echo 'Unrecognized option: -Xfoo'; exit 1", "Unrecognized option: -Xfoo"),
        ("echo 'Too small maximum heap'; exit 1", "Too small maximum heap"),
    ],
)
def test_a_job_that_cannot_start_is_a_setup_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, what: str
) -> None:
    """A retry cannot succeed."""
    run, _ = run_program(f"echo last words; {end}", tmp_path, monkeypatch)
    assert isinstance(run.failure, SetupError)
    assert f"Spark cannot start: {what}" in run.failure.rendered("problem")
    assert run.exit_code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (126, "spark-class: line 96: /usr/bin/java: Cannot allocate memory"),
        (126, "spark-class: line 96: /usr/bin/java: Text file busy"),
        (2, "python3: can't open file '/nfs/job.py': [Errno 5] Input/output error"),
        (1, "spark-class: line 96: /usr/bin/java: Cannot allocate memory"),
        (1, "08:00:00 WARN Client: /etc/ssl/java: world readable keystore"),
        (1, "the text of a record: java: No such file or directory"),
        (1, "a record contains When running with master key 4711"),
    ],
)
def test_a_temporary_lack_of_a_resource_is_transient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, printed: str
) -> None:
    """Lines that only contain words of a setup error are transient, too."""
    run, _ = run_program(f'echo "{printed}"; exit {code}', tmp_path, monkeypatch)
    assert run.exit_code.retryable
    assert not isinstance(run.failure, SetupError)


def test_the_error_for_exit_code_1_does_not_contain_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may have crashed before its result; a retry is safe. Only the log has values."""
    run, _ = run_program("echo last words; exit 1", tmp_path, monkeypatch)
    assert isinstance(run.failure, Unforeseen)
    assert "exit code 1 of spark-submit" in str(run.failure)
    assert "last words" not in str(run.failure)
    assert run.exit_code is ExitCode.CRASH


@pytest.mark.parametrize("code", set(ExitCode) - {ExitCode.CRASH, ExitCode.USAGE})
def test_the_exit_codes_of_jobs_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ExitCode
) -> None:
    """They report what the job reports."""
    run, _ = run_program(f"exit {code.value}", tmp_path, monkeypatch)
    assert run == JobRun(exit_code=code, results=None)

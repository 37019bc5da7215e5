"""Tests of the frame of every job: arguments, result line, exit code."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import PROJECT
from tests.support.consoles import app_of
from tests.support.typed_lake import home_typed_lake
from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.app.run import main, run
from tidemark.app.steps import JOBS, Step
from tidemark.bronze.ingest.errors import CommitNotFound
from tidemark.core.errors import ExitCode, LostRange, TidemarkError
from tidemark.core.plan import PlanRef
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.spark.engine import JobRun, Server, Submit
from tidemark.spark.sessions import ApplicationSessions
from tidemark.spark.submit import RESULT_MARKER, submit
from tidemark.spec.ref import DecodeRef, MergeRef, Replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARGV = ["--plan", "prices=7"]
THREE = ["--plan", "prices=7", "--plan", "orders=3", "--plan", "streams_intro=1"]
TRANSIENT = KafkaUnavailable(operation="list_offsets", reason="timed out")
UNKNOWN = CommitNotFound(pipeline="prices", sequence=7, seen="no commit")
REFUSED = LostRange(pipeline="prices", topic="prices", lost=((0, 0, 4),))


def run_job(
    patch: pytest.MonkeyPatch,
    body: Callable[[Pipeline, PlanRef], Mapping[str, object]],
    argv: Sequence[str],
    at_once: Callable[[], int] | None = None,
) -> int:
    """Run the entry point of a job with other work, in threads if `at_once` returns a number."""
    patch.setitem(JOBS, "check", Step(take=body, concurrent=at_once is not None))
    if at_once is not None:
        patch.setattr(ApplicationSessions, "plans_at_once", lambda _: at_once())
    return main("check", "doc", argv)


def results_of(captured: str) -> list[dict[str, Any]]:
    (line,) = (line for line in captured.splitlines() if line.startswith(RESULT_MARKER))
    return list(json.loads(line.removeprefix(RESULT_MARKER)))


def test_a_job_prints_the_results_of_all_plans_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(_: Pipeline, plan: PlanRef) -> Mapping[str, object]:
        return {"records": plan.sequence * 10}

    assert run_job(monkeypatch, body, THREE) == ExitCode.OK
    assert results_of(capsys.readouterr().out) == [
        {"pipeline": "prices", "plan": 7, "records": 70},
        {"pipeline": "orders", "plan": 3, "records": 30},
        {"pipeline": "streams_intro", "plan": 1, "records": 10},
    ]


@pytest.mark.spark
def test_a_job_on_a_server_shows_the_tasks_of_its_queries(
    connect_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends the counts every two seconds. Each task takes longer."""
    home_typed_lake(tmp_path)
    slow = "java_method('java.lang.Thread', 'sleep', id * 0 + 2500) IS NULL AS done"

    def body(pipeline: Pipeline, _: PlanRef) -> Mapping[str, object]:
        rows = pipeline.adapters.sessions.shared().range(0, 3, 1, 3).selectExpr(slow).collect()
        return {"records": len(rows)}

    shown: list[tuple[int, int]] = []
    monkeypatch.setitem(JOBS, "check", Step(take=body))
    done = run(
        app_of(tmp_path)(),
        connect_server,
        "check",
        [PlanRef(pipeline="events", sequence=1)],
        print,
        show_tasks=lambda *counts: shown.append(counts),
    )
    assert [result["records"] for result in done.results or ()] == [3]
    assert {total for _, total in shown} == {3}
    assert [finished for finished, _ in shown] == sorted(finished for finished, _ in shown)


@pytest.mark.spark
def test_a_job_by_spark_submit_shows_the_tasks_of_its_stages(tmp_path: Path) -> None:
    """Spark prints stages that take longer than half a second."""
    script = tmp_path / "job.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "rows = SparkSession.builder.getOrCreate().range(0, 3, 1, 3)\n"
        "sleep = \"java_method('java.lang.Thread', 'sleep', id * 0 + 1500) IS NULL\"\n"
        f"rows.selectExpr(sleep).collect(); print({RESULT_MARKER!r} + '[]')\n"
    )
    shown: list[tuple[int, int]] = []
    lines: list[str] = []
    done = submit(
        script,
        [],
        name="tasks",
        engine=Submit("local[1]"),
        settings={"spark.ui.enabled": "false"},
        environ=os.environ,
        print_line=lines.append,
        show_tasks=lambda *counts: shown.append(counts),
    )
    assert done == JobRun(exit_code=ExitCode.OK, results=[])
    assert {total for _, total in shown} == {3}
    assert [finished for finished, _ in shown] == sorted(finished for finished, _ in shown)
    assert not [line for line in lines if "[Stage" in line or not line]


def test_every_job_has_an_entry_point() -> None:
    assert {file.stem for file in (PROJECT / "jobs").glob("*.py")} == set(JOBS)


def test_a_job_imports_the_installed_pyspark_and_not_its_uncompiled_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spark-submit puts the archives on the path; archives of another Spark stay."""
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    installed = Path(pyspark.origin).parent / "python" / "lib"
    other = "/opt/spark/python/lib/pyspark.zip"
    archives = [str(archive) for archive in installed.glob("*.zip")]
    assert len(archives) == 2
    monkeypatch.setattr(sys, "path", ["/jobs", *archives, other, *sys.path])

    path: list[str] = []

    def body(_: Pipeline, __: PlanRef) -> Mapping[str, object]:
        path.extend(sys.path)
        return {}

    assert run_job(monkeypatch, body, ARGV) == ExitCode.OK
    assert not set(archives) & set(path)
    assert path[:2] == ["/jobs", other]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TRANSIENT, ExitCode.TRANSIENT),
        (UNKNOWN, ExitCode.UNKNOWN_OUTCOME),
        (REFUSED, ExitCode.REFUSED),
    ],
)
def test_a_named_error_becomes_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    error: TidemarkError,
    code: ExitCode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(_: Pipeline, __: PlanRef) -> Mapping[str, object]:
        raise error

    assert run_job(monkeypatch, body, ARGV) == code
    (record,) = results_of(capsys.readouterr().out)
    assert (record["pipeline"], record["plan"]) == ("prices", 7)
    assert record["error"] == type(error).__name__
    assert record["retryable"] is code.retryable


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_plan_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, at_once: int, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = {"prices": ZeroDivisionError("by zero"), "orders": REFUSED}

    def body(_: Pipeline, plan: PlanRef) -> Mapping[str, object]:
        if plan.pipeline in errors:
            raise errors[plan.pipeline]
        return {"wrote": True}

    code = run_job(monkeypatch, body, THREE, lambda: at_once)
    crashed, refused, landed = results_of(capsys.readouterr().out)
    assert code == ExitCode.CRASH
    assert (crashed["error"], crashed["retryable"]) == ("Unforeseen", True)
    assert crashed["actual"] == "ZeroDivisionError"
    assert (refused["error"], refused["retryable"]) == ("LostRange", False)
    assert landed == {"pipeline": "streams_intro", "plan": 1, "wrote": True}


def test_plans_run_concurrently_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three waits for the others."""
    together = threading.Barrier(3, timeout=60)

    def body(_: Pipeline, __: PlanRef) -> Mapping[str, object]:
        together.wait()
        return {}

    assert run_job(monkeypatch, body, THREE, lambda: 3) == ExitCode.OK


def test_an_unforeseen_error_is_logged_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def body(_: Pipeline, __: PlanRef) -> Mapping[str, object]:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        assert run_job(monkeypatch, body, ARGV) == ExitCode.CRASH
    (logged,) = [record.exc_info for record in caplog.records if record.exc_info]
    assert logged[0] is ZeroDivisionError
    assert logged[2] is not None


@pytest.mark.parametrize(
    ("log_format", "error"), [("json", "UnknownPipeline"), ("xml", "SetupError")]
)
def test_a_job_logs_objects_and_prints_its_result_line(
    tmp_path: Path, log_format: str, error: str
) -> None:
    """An unknown format is the named error of its plans."""
    (tmp_path / "pipelines").mkdir()
    environ = {
        **os.environ,
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
        "TIDEMARK_LOG_FORMAT": log_format,
    }
    done = subprocess.run(
        [sys.executable, str(PROJECT / "jobs" / "upsert.py"), "--plan", "none=7"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == ExitCode.REFUSED
    (record,) = results_of(done.stdout)
    assert (record["pipeline"], record["error"]) == ("none", error)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    logged = [(each["event"], each["item"], each["error"]) for each in lines]
    assert logged == ([("step failed", "none=7", error)] if log_format == "json" else [])


@pytest.mark.spark
def test_an_exception_of_spark_is_a_named_error_without_values(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))

    def body(_: Pipeline, __: PlanRef) -> Mapping[str, object]:
        spark.range(3).selectExpr("cast(concat('secret', id) AS int)").collect()
        return {}

    assert run_job(monkeypatch, body, ARGV) == ExitCode.TRANSIENT
    (record,) = results_of(capsys.readouterr().out)
    assert record["error"] == "EngineFailed"
    assert "executing prices=7: SparkNumberFormatException" in record["problem"]
    assert "secret" not in f"{record} {Path(record['log']).read_text()}"
    assert Path(record["log"]).parent == tmp_path / "logs"


@pytest.mark.spark
def test_a_failed_start_of_spark_is_a_named_error_of_every_plan(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def at_once() -> int:
        return spark.read.format("nonexistent").load().count()

    def body(_: Pipeline, __: PlanRef) -> Mapping[str, object]:
        raise AssertionError

    assert run_job(monkeypatch, body, THREE, at_once) == ExitCode.REFUSED
    records = results_of(capsys.readouterr().out)
    assert [record["error"] for record in records] == ["SetupError"] * 3


@pytest.mark.parametrize(
    ("job", "arguments", "expected"),
    [
        ("ingest", [["--plan"], ["--plan", "=7"], ["--plan", "prices=x"]], "PIPELINE=NUMBER"),
        ("decode", [["--plan", "prices=7"], ["--pipeline", "prices=x"]], "PIPELINE or PIPELINE="),
    ],
)
def test_arguments_that_name_no_work_are_a_usage_error(
    job: str, arguments: list[list[str]], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in ([], *arguments):
        with pytest.raises(SystemExit) as stopped:
            main(job, "doc", argv)
        assert stopped.value.code == ExitCode.USAGE
    printed = capsys.readouterr().err
    assert f"expected {expected}" in printed
    assert "not 'prices=x'" in printed


TABLES: dict[str, Any] = {
    "ingest": PlanRef(pipeline="events", sequence=1),
    "check": PlanRef(pipeline="events", sequence=1),
    "decode": DecodeRef(pipeline="events"),
    "upsert": MergeRef(pipeline="events", version=1),
    "replay_preview": DecodeRef(pipeline="events", replay=Replay()),
    "run": PlanRef(pipeline="events", sequence=1),
}


def submit_job(home: Path, monkeypatch: pytest.MonkeyPatch, job: str) -> tuple[JobRun, set[str]]:
    """Submit a job to a program that ends well; its result, and the variables with connections."""
    program = home / "spark-submit"
    program.write_text('#!/bin/sh\nenv > "$TIDEMARK_HOME/environ"\necho "TIDEMARK_RESULT []"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(home / "python"))
    connections = ("KAFKA_DEFAULT", "TRADES", "SPARK_DEFAULT")
    app = App(
        environ={
            "TIDEMARK_HOME": str(home),
            "TIDEMARK_PIPELINES": str(home / "pipelines"),
            **{f"AIRFLOW_CONN_{name}": "{}" for name in connections},
        }
    )
    done = run(app, Submit("local"), job, [TABLES[job]], print)
    names = (line.partition("=")[0] for line in (home / "environ").read_text().splitlines())
    return done, {name for name in names if name.startswith("AIRFLOW")}


@pytest.mark.parametrize("job", TABLES)
def test_a_job_gets_the_connections_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    """Only a job that decodes needs the registry."""
    home_typed_lake(tmp_path, "registry: trades, value: {format: avro}, upsert: {}")
    expected = {
        "ingest": {"AIRFLOW_CONN_KAFKA_DEFAULT"},
        "decode": {"AIRFLOW_CONN_TRADES"},
        "replay_preview": {"AIRFLOW_CONN_TRADES"},
        "run": {"AIRFLOW_CONN_KAFKA_DEFAULT", "AIRFLOW_CONN_TRADES"},
    }
    _, variables = submit_job(tmp_path, monkeypatch, job)
    assert variables == expected.get(job, set())


def test_a_broken_typed_table_does_not_keep_a_job_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size only tunes the JVM. The job reports the error and continues with other pipelines."""
    lake = home_typed_lake(tmp_path)
    lake.land_values([b"a"])
    log = lake.typed_uri / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{")
    done, _ = submit_job(tmp_path, monkeypatch, "run")
    assert done.exit_code == ExitCode.OK

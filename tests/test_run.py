"""Every job's frame: arguments in, one result line and an exit code out."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import PROJECT
from tidemark.app import App
from tidemark.core.errors import ExitCode, LostRange, TidemarkError
from tidemark.core.plan import PlanRef
from tidemark.ingest.errors import CommitNotFound
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.run import JOBS, Job, main
from tidemark.spark.submit import RESULT_MARKER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARGV = ["--plan", "prices=7"]
THREE = ["--plan", "prices=7", "--plan", "orders=3", "--plan", "tides=1"]
TRANSIENT = KafkaUnavailable(operation="list_offsets", reason="timed out")
UNKNOWN = CommitNotFound(pipeline="prices", sequence=7, seen="no commit")
REFUSED = LostRange(pipeline="prices", topic="prices", lost=((0, 0, 4),))


def results_of(captured: str) -> list[dict[str, Any]]:
    """The result line's JSON."""
    (line,) = (line for line in captured.splitlines() if line.startswith(RESULT_MARKER))
    return list(json.loads(line.removeprefix(RESULT_MARKER)))


def test_a_job_prints_one_result_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The body is told each plan, and what it says of all of them is on one line, in order."""

    def body(_: App, plan: PlanRef) -> Mapping[str, object]:
        return {"records": plan.sequence * 10}

    assert main(Job.of_step(PlanRef.parse, body), "doc", THREE) == ExitCode.OK
    assert results_of(capsys.readouterr().out) == [
        {"pipeline": "prices", "plan": 7, "records": 70},
        {"pipeline": "orders", "plan": 3, "records": 30},
        {"pipeline": "tides", "plan": 1, "records": 10},
    ]


def test_every_job_has_an_entry_point() -> None:
    """spark-submit runs it by the name of the job."""
    assert {file.stem for file in (PROJECT / "jobs").glob("*.py")} == set(JOBS)


def test_a_job_imports_the_installed_pyspark_and_not_its_uncompiled_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The path is as spark-submit makes it; the archive of another Spark is not ours to remove."""
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    installed = Path(pyspark.origin).parent / "python" / "lib"
    other = "/opt/spark/python/lib/pyspark.zip"
    archives = [str(archive) for archive in installed.glob("*.zip")]
    assert len(archives) == 2
    monkeypatch.setattr(sys, "path", ["/jobs", *archives, other, *sys.path])

    seen: list[str] = []

    def body(_: App, __: PlanRef) -> Mapping[str, object]:
        seen.extend(sys.path)
        return {}

    assert main(Job.of_step(PlanRef.parse, body), "doc", ARGV) == ExitCode.OK
    assert not set(archives) & set(seen)
    assert seen[:2] == ["/jobs", other]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TRANSIENT, ExitCode.TRANSIENT),
        (UNKNOWN, ExitCode.UNKNOWN_OUTCOME),
        (REFUSED, ExitCode.REFUSED),
    ],
)
def test_a_named_error_becomes_its_exit_code(
    error: TidemarkError, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    """DAGs decide on retries by the code; people read the record."""

    def body(_: App, __: PlanRef) -> Mapping[str, object]:
        raise error

    assert main(Job.of_step(PlanRef.parse, body), "doc", ARGV) == code
    (record,) = results_of(capsys.readouterr().out)
    assert (record["pipeline"], record["plan"]) == ("prices", 7)
    assert record["error"] == type(error).__name__
    assert record["retryable"] is code.retryable


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_plan_that_fails_does_not_stop_the_others(
    at_once: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it fails with: what the others came to is told, and the exit code is not 0."""
    errors = {"prices": ZeroDivisionError("by nothing"), "orders": REFUSED}

    def body(_: App, plan: PlanRef) -> Mapping[str, object]:
        if plan.pipeline in errors:
            raise errors[plan.pipeline]
        return {"wrote": True}

    code = main(Job.of_step(PlanRef.parse, body, at_once=lambda _: at_once), "doc", THREE)
    crashed, refused, landed = results_of(capsys.readouterr().out)
    assert code == ExitCode.CRASH
    assert (crashed["error"], crashed["retryable"]) == ("Unforeseen", True)
    assert crashed["actual"] == "ZeroDivisionError: by nothing"
    assert (refused["error"], refused["retryable"]) == ("LostRange", False)
    assert landed == {"pipeline": "tides", "plan": 1, "wrote": True}


def test_as_many_plans_as_may_run_at_the_same_time_do() -> None:
    """Each of three waits for the two others; alone it would wait for ever."""
    together = threading.Barrier(3, timeout=60)

    def body(_: App, __: PlanRef) -> Mapping[str, object]:
        together.wait()
        return {}

    assert main(Job.of_step(PlanRef.parse, body, at_once=lambda _: 3), "doc", THREE) == ExitCode.OK


def test_an_unforeseen_error_is_not_dressed_up(caplog: pytest.LogCaptureFixture) -> None:
    """Its traceback is in the log; the exit code is the interpreter's own."""

    def body(_: App, __: PlanRef) -> Mapping[str, object]:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        assert main(Job.of_step(PlanRef.parse, body), "doc", ARGV) == ExitCode.CRASH
    assert "Traceback" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.spark
def test_an_exception_of_spark_that_no_adapter_names_is_a_named_error(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A value that Spark's message has is in no text."""
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))

    def body(_: App, __: PlanRef) -> Mapping[str, object]:
        spark.range(3).selectExpr("cast(concat('secret', id) AS int)").collect()
        return {}

    assert main(Job.of_step(PlanRef.parse, body), "doc", ARGV) == ExitCode.TRANSIENT
    (record,) = results_of(capsys.readouterr().out)
    assert record["error"] == "EngineFailed"
    assert "executing prices=7: SparkNumberFormatException" in record["problem"]
    assert "secret" not in f"{record} {Path(record['log']).read_text()}"
    assert Path(record["log"]).parent == tmp_path / "logs"


@pytest.mark.spark
def test_a_spark_that_does_not_start_is_a_named_error_of_every_plan(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class that the session needs is missing."""

    def at_once(_: App) -> int:
        return spark.read.format("nonexistent").load().count()

    def body(_: App, __: PlanRef) -> Mapping[str, object]:
        raise AssertionError

    assert main(Job.of_step(PlanRef.parse, body, at_once=at_once), "doc", THREE) == ExitCode.REFUSED
    records = results_of(capsys.readouterr().out)
    assert [record["error"] for record in records] == ["SetupError"] * 3


def test_a_wrong_command_line_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """At least one plan, by name and number."""
    for argv in ([], ["--plan"], ["--plan", "prices"], ["--plan", "=7"], ["--plan", "prices=x"]):
        with pytest.raises(SystemExit) as stopped:
            main(JOBS["ingest"], "doc", argv)
        assert stopped.value.code == ExitCode.USAGE
    assert "expected PIPELINE=NUMBER, not 'prices=x'" in capsys.readouterr().err

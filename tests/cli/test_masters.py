"""`tidemark ingest` with a Spark that cannot start, without Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import Command, CommandResult
from tests.support.file_lake import home_lake
from tidemark.core.errors import ExitCode
from tidemark.local.broker_settings import HOST
from tidemark.spark.sockets import free_ports

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture
def ingest(tmp_path: Path, offline: Command) -> Command:
    """Execute the open plan 4 of pipeline `events`, with more options."""
    home_lake(tmp_path).plan(1)

    def run(*options: str) -> CommandResult:
        return offline("ingest", "events", "--plan", "4", "--json", *options)

    return run


@pytest.mark.parametrize(
    ("master", "cause", "by"),
    [
        (
            "spak://x",
            "Master must either be yarn or start with spark, k8s, or local",
            "spark-submit",
        ),
        pytest.param(
            "local[x]",
            "Could not parse Master URL: 'local[x]'",
            "the Spark context",
            marks=pytest.mark.faults,
        ),
    ],
)
@pytest.mark.usefixtures("ingest")
def test_a_wrong_master_is_a_setup_error_and_lines_of_the_jvm_are_objects_in_a_json_log(
    master: str, cause: str, by: str
) -> None:
    """The output of spark-submit has its own text; the Spark context raises an exception."""
    command = ["ingest", "events", "--plan", "4", "--json", "--master", master]
    ran = subprocess.run(
        [sys.executable, "-c", "from tidemark.cli import main; main()", *command],
        env={**os.environ, "TIDEMARK_LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    printed = {each["event"] for each in lines if cause in each.get("message", "")}
    assert printed == ({"progress"} if by == "spark-submit" else set())
    (error,) = json.loads(ran.stdout)
    assert (error["error"], error["retryable"]) == ("SetupError", False)
    assert f"Spark cannot start: {cause}" in error["problem"]
    assert ran.returncode == ExitCode.REFUSED


@pytest.mark.parametrize("home", [None, pytest.param("/nowhere", marks=pytest.mark.faults)])
def test_a_missing_java_is_a_setup_error(
    ingest: Command, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """Neither the PATH nor JAVA_HOME contains a Java."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setenv("JAVA_HOME", home)
    ran = ingest()
    (error,) = ran.json
    assert (error["error"], error["retryable"]) == ("SetupError", False)
    assert error["problem"].startswith("Spark cannot start: ")
    assert home is None or f"{home}/bin/java: No such file or directory" in error["problem"]
    assert ran.code == ExitCode.REFUSED


@pytest.mark.faults
def test_a_master_that_does_not_answer_is_retried(ingest: Command) -> None:
    """Spark tries three times for 20 seconds; a master may come back."""
    (port,) = free_ports(HOST, 1)
    ran = ingest("--master", f"spark://{HOST}:{port}")
    (error,) = ran.json
    assert (error["error"], error["retryable"]) == ("EngineFailed", True)
    assert "the Spark application has ended; its master may be down" in error["problem"]
    assert ran.code == ExitCode.TRANSIENT

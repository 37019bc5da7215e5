"""Runs commands in the process of the test, with the exit code of a process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidemark import cli
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.kafka import admin
from tidemark.local.broker import BrokerStatus
from tidemark.spark.engine import TOKEN_VARIABLE, Server


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON document on standard output."""
        return json.loads(self.out)


Command = Callable[..., CommandResult]


def command_in(
    home: Path, bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Return a function that runs commands with the home `home` and its folder `pipelines`."""
    environ = {
        "TIDEMARK_HOME": str(home),
        "TIDEMARK_PIPELINES": str(home / "pipelines"),
        "COLUMNS": "160",
        connection_variable("kafka_default"): kafka_connection(bootstrap),
    }
    return in_process(environ, monkeypatch, capsys)


def in_process(
    environ: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Return a function that runs commands like their entry point, with these variables."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["tidemark", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return CommandResult(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def by_submit(
    broker: BrokerStatus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Run a command in this process, like its entry point, with Spark by spark-submit."""
    return command_in(tmp_path, broker.bootstrap, monkeypatch, capsys)


@pytest.fixture
def tidemark(
    by_submit: Command, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Command:
    """Run a command in this process, with Spark on the shared server."""
    if request.node.get_closest_marker("spark"):
        server: Server = request.getfixturevalue("connect_server")
        monkeypatch.setenv("TIDEMARK_MASTER", f"sc://{server.host}:{server.port}")
        monkeypatch.setenv(TOKEN_VARIABLE, server.token)
    return by_submit


@pytest.fixture
def unconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command of a home without a Kafka connection: it does not wait for a broker."""
    environ = {
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
        "COLUMNS": "160",
    }
    return in_process(environ, monkeypatch, capsys)


@pytest.fixture
def offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command without a broker. Each request ends soon after its connection is refused."""
    monkeypatch.setattr(admin, "CONNECT_GRACE_S", 0.1)
    return command_in(tmp_path, "127.0.0.1:1", monkeypatch, capsys)

"""The engine that a command uses, and its error for an unusable engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.support.commands import Command
from tests.support.connect_page import ConnectPage
from tests.support.transactions import produce_values
from tests.support.waiting import wait_until
from tidemark.app.app import App
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.spark.connect import connect_sessions
from tidemark.spark.engine import TOKEN_VARIABLE, Server
from tidemark.spark.server import SparkServer
from tidemark.spark.settings import server_settings
from tidemark.spec.layout import Layout

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SMALL = {"spark.master": "local[2]", "spark.driver.memory": "1g"}
"""Settings of a server of one test."""

_SPEC = """
name: events
topic: {topic}
schedule: "@daily"
start: earliest
spark: {spark}
"""


@pytest.fixture
def spec(tmp_path: Path, broker: BrokerStatus, topic: TopicFactory) -> Path:
    """The spec of a pipeline whose topic has ten records."""
    name = topic()
    produce_values(broker.bootstrap, name, 10)
    (tmp_path / "pipelines").mkdir()
    file = tmp_path / "pipelines" / "events.yaml"
    file.write_text(_SPEC.format(topic=name, spark="{}"))
    return file


def plans() -> int:
    """Return the number of recorded plans."""
    return len(App.from_environment().control.ledger("events").plans)


@pytest.mark.usefixtures("spec")
def test_the_server_of_a_home_is_used_while_it_runs(
    by_submit: Command, layout: Layout, connect_server: Server, tmp_path: Path
) -> None:
    """The first line of a command names the server; spark-submit finds its plan landed."""
    (tmp_path / "spark").symlink_to(layout.spark)
    landed = by_submit("ingest", "events", "--json")
    assert landed.code == ExitCode.OK
    assert landed.err.splitlines()[0] == f"engine: Spark Connect at localhost:{connect_server.port}"
    assert (landed.json[0]["wrote"], landed.json[0]["records"]) == (True, 10)
    shown = by_submit("spark", "status", "--json")
    assert shown.json["address"] == f"sc://localhost:{connect_server.port}"
    assert connect_server.token not in shown.out + shown.err
    again = by_submit("ingest", "events", "--plan", "1", "--master", "local[2]", "--json")
    assert again.err.splitlines()[0] == "engine: spark-submit, master local[2]"
    assert (again.json[0]["wrote"], again.json[0]["records"]) == (False, 10)


@pytest.mark.usefixtures("spec")
def test_an_unreachable_server_is_reported_before_a_plan_is_recorded(by_submit: Command) -> None:
    """The error is retryable."""
    ran = by_submit("ingest", "events", "--master", "sc://localhost:1", "--json")
    assert ran.code == ExitCode.TRANSIENT
    assert ran.json["error"] == "EngineUnavailable"
    assert "tidemark spark start" in ran.json["fix"]
    assert plans() == 0


@pytest.mark.usefixtures("spec")
def test_a_wrong_token_is_reported_before_a_plan_is_recorded(
    by_submit: Command, connect_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is not retryable."""
    monkeypatch.setenv(TOKEN_VARIABLE, "canary")
    address = f"sc://localhost:{connect_server.port}"
    ran = by_submit("ingest", "events", "--master", address, "--json")
    assert (ran.code, ran.json["error"]) == (ExitCode.REFUSED, "SetupError")
    assert "canary" not in ran.out + ran.err
    assert plans() == 0


@pytest.mark.usefixtures("spec")
def test_a_token_on_the_command_line_is_refused(by_submit: Command) -> None:
    """Other users of the machine could read the token."""
    ran = by_submit("ingest", "events", "--master", "sc://localhost:1/;token=canary")
    assert ran.code == ExitCode.USAGE
    assert TOKEN_VARIABLE in ran.err
    assert "canary" not in ran.out + ran.err


def test_a_setting_of_a_whole_application_is_refused_on_a_server(
    tidemark: Command, spec: Path
) -> None:
    """The command records no plan."""
    spec.write_text(spec.read_text().replace("spark: {}", "spark: {spark.driver.cores: '1'}"))
    ran = tidemark("ingest", "events", "--json")
    assert ran.code == ExitCode.REFUSED
    assert ran.json["error"] == "SetupError"
    assert "spark.driver.cores" in ran.json["problem"]
    assert plans() == 0


def test_down_also_stops_a_server_that_the_user_started(
    by_submit: Command,
) -> None:
    """`down` names the parts that it stops; a second start leaves the server unchanged."""
    try:
        first = by_submit("spark", "start", "--json")
        assert first.code == ExitCode.OK, first.err
        again = by_submit("spark", "start", "--json")
        assert again.json["pid"] == first.json["pid"]
        stopped = by_submit("down")
        assert stopped.out.splitlines()[0] == "stopped   the Spark server"
        assert by_submit("spark", "status", "--json").json["running"] is False
        assert "no part was running" in by_submit("down").out
    finally:
        by_submit("spark", "stop")


@pytest.mark.faults
def test_a_run_leaves_no_session_on_its_server(
    by_submit: Command, spec: Path, layout: Layout, tmp_path: Path
) -> None:
    """Neither a run that lands nor a run that fails in Spark leaves a session."""
    spec.write_text(
        f"{spec.read_text()}decode:\n  publish: always\n  value: {{format: string}}\n"
        "  rules: {number: \"CAST('x' || value AS INT) > 0\"}\n"
    )
    page = ConnectPage.anywhere()
    settings = {**SMALL, **page.settings}
    server = SparkServer(tmp_path / "spark", os.environ, server_settings(layout, settings))
    try:
        server.start(lambda _: None)
        landed = by_submit("ingest", "events", "--json")
        assert landed.code == ExitCode.OK, landed.out
        wait_until(lambda: page.sessions() == 0)
        failed = by_submit("decode", "events", "--json")
        assert failed.code == ExitCode.TRANSIENT, failed.out
        assert failed.json[0]["error"] == "EngineFailed"
        wait_until(lambda: page.sessions() == 0)
        assert page.requests() == 0
        with connect_sessions(server.running() or pytest.fail("no server"), {}) as sessions:
            sessions.shared()
            wait_until(lambda: page.sessions() == 1)
    finally:
        server.stop()

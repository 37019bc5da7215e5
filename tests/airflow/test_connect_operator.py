"""The operator with a Spark Connect connection runs the job in the task's own process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.airflow.conftest import Answer, Probe
from tests.conftest import TopicFactory
from tests.support.transactions import produce_values
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.bronze.backfill.selection import select
from tidemark.local.broker import BrokerStatus
from tidemark.spark.engine import Server
from tidemark.spec.layout import Layout

pytestmark = [pytest.mark.broker, pytest.mark.spark]

UNREACHABLE = Server(host="localhost", port=1)


@pytest.fixture
def environ(tmp_path: Path, broker: BrokerStatus, topic: TopicFactory) -> dict[str, str]:
    """A home with a pipeline, a topic of ten records and one recorded plan."""
    name = topic()
    produce_values(broker.bootstrap, name, 10)
    specs = tmp_path / "pipelines"
    specs.mkdir()
    spec = f"name: events\ntopic: {name}\nschedule: '@daily'\nstart: earliest\n"
    (specs / "events.yaml").write_text(spec)
    variables = {
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_PIPELINES": str(specs),
        connection_variable("kafka_default"): kafka_connection(broker.bootstrap),
    }
    assert App(environ=variables).pipeline("events").planner.plan("a run").plan is not None
    return variables


def with_connection(
    environ: dict[str, str],
    server: Server = UNREACHABLE,
    token: str = "",
) -> dict[str, str]:
    """The environment with a connection to a server."""
    spark = {
        "conn_type": "spark_connect",
        "host": server.host,
        "port": server.port,
        "password": token,
    }
    return {**environ, "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark)}


def run(probe: Probe, environ: dict[str, str], server: Server, token: str) -> Answer:
    """Run the ingest task of the run with plan 1."""
    return probe.ask(
        "apps_built",
        call="run_job",
        environ=with_connection(environ, server, token),
        task="ingest_run",
        pipelines=["events"],
        requested_by="a run",
    )


def test_a_plan_lands_on_a_server(
    task_probe: Probe, environ: dict[str, str], connect_server: Server
) -> None:
    """No log and no rendered field contains the token; the environment stays unchanged."""
    answer = run(task_probe, environ, connect_server, connect_server.token)
    assert answer.value["error"] is None
    assert answer.value["apps"] == 1, "the job on the server uses the app of its task"
    assert answer.value["environment_restored"] is True
    before, engine, _ = answer.printed.partition(f"engine={connect_server}")
    assert engine
    assert "plan" not in before, "the engine comes first"
    assert connect_server.token not in answer.printed + json.dumps(answer.value)
    (record,) = App(environ=environ).control.ledger("events").plans.values()
    assert record.held_now is not None
    assert record.held_now.records == 10


def test_a_connection_to_the_server_of_this_home_needs_no_token(
    task_probe: Probe,
    environ: dict[str, str],
    layout: Layout,
    connect_server: Server,
    tmp_path: Path,
) -> None:
    """The task reads the token file; a server at another port never gets that token."""
    (tmp_path / "spark").symlink_to(layout.spark)
    answer = run(task_probe, environ, connect_server, token="")
    assert answer.value["error"] is None
    assert connect_server.token not in answer.printed + json.dumps(answer.value)
    app = App(environ=environ)
    assert (
        app.engines.with_own_token(Server(host="localhost", port=connect_server.port))
        == connect_server
    )
    for other in (Server(host="localhost", port=1), Server(host="db", port=connect_server.port)):
        assert app.engines.with_own_token(other) == other


def test_airflow_of_a_home_uses_its_server_while_it_runs(
    layout: Layout, connect_server: Server, tmp_path: Path
) -> None:
    """The connection contains no token; a connection in the environment overrides it."""
    variable = connection_variable("spark_default")
    home = {"TIDEMARK_HOME": str(tmp_path), connection_variable("kafka_default"): "{}"}
    assert variable not in App(environ=home).airflow().environ
    (tmp_path / "spark").symlink_to(layout.spark)
    assert json.loads(App(environ=home).airflow().environ[variable]) == {
        "conn_type": "spark_connect",
        "host": "localhost",
        "port": connect_server.port,
    }
    assert App(environ={**home, variable: "own"}).airflow().environ[variable] == "own"


def test_a_refusing_server_fails_the_task_and_an_unreachable_server_is_retried(
    task_probe: Probe, environ: dict[str, str], connect_server: Server
) -> None:
    """The retries follow the exit codes of the command; the plan stays open."""
    refused = run(task_probe, environ, connect_server, "canary")
    assert refused.value["error"].startswith("SetupError: ")
    assert refused.value["fails_now"] is True
    assert "canary" not in refused.printed + json.dumps(refused.value)
    away = run(task_probe, environ, UNREACHABLE, connect_server.token)
    assert away.value["kind"] == "EngineUnavailable"
    assert away.value["fails_now"] is False
    assert len(App(environ=environ).control.ledger("events").open_plans()) == 1


_FORM = {
    **dict.fromkeys(("offsets", "from", "until", "plan", "partitions", "chunk", "reason")),
    **dict.fromkeys(("replace", "readable_only", "dry_run", "approved"), False),
    "pipeline": "unplanned",
    "select_by": "retained log",
}

PLANNERS: dict[str, tuple[str, dict[str, object]]] = {
    "a run": (
        "call_task",
        {"task": "plan_run", "pipelines": ["unplanned"], "requested_by": "a run"},
    ),
    "a form": (
        "call_task",
        {
            "task": "request_backfill",
            "pipeline": "unplanned",
            "requested_by": "a form",
            "params": _FORM,
        },
    ),
    "a chunk": (
        "run_job",
        {
            "task": "ingest_chunk",
            "pipeline": "unplanned",
            "requested_by": "before",
            "chunk": 1,
        },
    ),
    "typed rows": ("run_job", {"task": "decode_run", "pipelines": ["unplanned"]}),
}
"""The call of the probe and its arguments, by the task that plans."""


@pytest.fixture
def unplanned(environ: dict[str, str]) -> dict[str, str]:
    """The same pipeline with a requested backfill and a setting that every server refuses."""
    spec = Path(environ["TIDEMARK_PIPELINES"]) / "unplanned.yaml"
    text = (spec.parent / "events.yaml").read_text().replace("events", "unplanned")
    spec.write_text(
        f"{text}decode: {{value: {{format: json, schema: {{n: long}}}}}}\n"
        "spark: {spark.driver.cores: '1'}\n"
    )
    backfills = App(environ=environ).pipeline("unplanned").backfills
    backfills.request(
        backfills.preview(select(retained=True), None, readable_only=False),
        "before",
        approved=False,
    )
    return environ


@pytest.mark.parametrize("planner", PLANNERS)
def test_an_unsuitable_server_leaves_no_plan(
    task_probe: Probe, unplanned: dict[str, str], planner: str
) -> None:
    """Each task that records a plan or a backfill checks the engine first."""
    control = App(environ=unplanned).layout.control_table
    before = DeltaTable(control).version()
    question, arguments = PLANNERS[planner]
    refused = task_probe.ask(question, environ=with_connection(unplanned), **arguments).value
    assert "SetupError" in refused["error"]
    assert "spark.driver.cores" in refused["error"]
    assert refused["fails_now"] is True
    assert DeltaTable(control).version() == before


def test_an_unreachable_server_leaves_no_plan_and_is_retried(
    task_probe: Probe, environ: dict[str, str]
) -> None:
    """The task fails like the command, before it records anything."""
    question, arguments = PLANNERS["a run"]
    arguments = {**arguments, "pipelines": ["events"], "requested_by": "another run"}
    away = task_probe.ask(question, environ=with_connection(environ), **arguments).value
    assert away["error"].startswith("EngineUnavailable: ")
    assert away["fails_now"] is False
    assert list(App(environ=environ).control.ledger("events").plans) == [1]

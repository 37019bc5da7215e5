"""`tidemark up` and `down`, and Airflow's real command line in the Airflow of `tidemark up`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from confluent_kafka.admin import AdminClient

from tests.support.commands import Command
from tidemark.app.app import App
from tidemark.cli.local import _print_parts
from tidemark.core.errors import ExitCode
from tidemark.local.samples import SAMPLES
from tidemark.spark import sockets
from tidemark.spark.sockets import free_ports

TIDEMARK = Path(sys.executable).with_name("tidemark")


def airflow(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `tidemark airflow` in an environment without settings of Airflow."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK"))}
    return subprocess.run(
        [str(TIDEMARK), "airflow", *arguments],
        env={**kept, "TIDEMARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home in which Airflow ran once."""
    folder = tmp_path / "airflow"
    folder.mkdir()
    ports = {"api": 1, "worker_log": 2, "trigger_log": 3}
    state = {"session": 2**22, "pid": 2**22, "ports": ports}
    (folder / "standalone.json").write_text(json.dumps(state))
    return tmp_path


@pytest.mark.slow
def test_airflow_is_refused_before_the_first_start(tmp_path: Path) -> None:
    """Airflow would create its database elsewhere."""
    ran = airflow(tmp_path, "dags", "list")
    assert (ran.returncode, ran.stdout) == (ExitCode.REFUSED, "")
    assert f"SetupError: No Airflow was started in {tmp_path / 'airflow'}." in ran.stderr


@pytest.mark.slow
def test_airflow_runs_with_the_settings_of_the_home(home: Path) -> None:
    ran = airflow(home, "config", "get-value", "database", "sql_alchemy_conn")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == f"sqlite:///{home / 'airflow'}/airflow.db"
    ran = airflow(home, "connections", "get", "spark_default", "--output", "json")
    assert json.loads(ran.stdout)[0]["conn_type"] == "spark"


@pytest.mark.slow
def test_airflow_reads_options_and_decides_the_exit_code(home: Path) -> None:
    """Tidemark has an option `--json` too."""
    ran = airflow(home, "dags", "list", "--json")
    assert ran.returncode == ExitCode.USAGE
    assert "airflow" in ran.stderr
    assert "--json" in ran.stderr
    assert "Usage: tidemark" not in ran.stderr
    ran = airflow(home, "dags", "trigger", "--help")
    assert ran.returncode == 0
    assert "--conf" in ran.stdout
    assert "graphviz" not in ran.stdout + ran.stderr


def test_up_prints_the_address_of_the_console_first(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    airflow = App(environ={"TIDEMARK_HOME": str(home)}).airflow().status()
    _print_parts(replace(airflow, password="secret"), "127.0.0.1:2", "")
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "Console   http://127.0.0.1:1/plugin/tidemark"
    assert others[:5] == [
        "Airflow   http://127.0.0.1:1",
        "login     admin",
        "password  secret",
        "Kafka     127.0.0.1:2",
        "Spark     none",
    ]


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        ("the embedded broker", ("`tidemark up --kafka-port N`", "`make up KAFKA_PORT=N`")),
        ("Airflow's web UI", ("`tidemark up --port N`", "`make up PORT=N`")),
    ],
)
def test_up_refuses_a_port_in_use_before_any_part_starts(
    tmp_path: Path,
    unconnected: Command,
    wanted: str,
    options: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fix names the options of both commands."""
    monkeypatch.setattr(sockets, "_RELEASE_S", 0.1)
    (free,) = free_ports("127.0.0.1", 1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        used = holder.getsockname()[1]
        kafka, airflow = (used, free) if "broker" in wanted else (free, used)
        ran = unconnected("up", "--kafka-port", str(kafka), "--port", str(airflow))
    assert ran.code == ExitCode.REFUSED
    assert f"Port {used} is in use." in ran.err
    assert f"a free port for {wanted}" in ran.err
    fix = " ".join(ran.err.split())
    assert all(option in fix for option in options)
    assert "starting" not in ran.err
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_samples_go_to_no_other_cluster_unless_it_is_named(offline: Command) -> None:
    """The environment defines kafka_default as another cluster than the broker of this home."""
    refused = offline("sample", "produce", "prices", "--dry-run", "--json")
    assert refused.code == ExitCode.REFUSED
    assert (refused.json["error"], refused.json["actual"]) == ("SetupError", "127.0.0.1:1")
    assert "--connection kafka_default" in refused.json["fix"]
    named = offline("sample", "produce", "prices", "--dry-run", "--connection", "kafka_default")
    assert named.out == "1,000 records would be produced to topic prices at 127.0.0.1:1\n"


def test_samples_need_a_running_broker(unconnected: Command) -> None:
    """No default port of Kafka takes the place of the home's broker."""
    refused = unconnected("sample", "produce", "prices", "--dry-run", "--json")
    assert refused.json["error"] == "EmbeddedBrokerStopped"


@pytest.mark.airflow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.e2e
def test_up_starts_what_it_prints_and_down_stops_it(tmp_path: Path) -> None:
    """The first `up` unpauses its DAGs, and a second `up` changes nothing."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "quiet.yaml").write_text(
        'name: quiet\ntopic: quiet\nschedule: "@yearly"\nstart: none\n', encoding="utf-8"
    )
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK"))},
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
    }

    def tidemark(*arguments: str) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [str(TIDEMARK), *arguments],
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == ExitCode.OK, ran.stderr
        return ran

    port, kafka_port = map(str, free_ports("127.0.0.1", 2))
    ports = ("--port", port, "--kafka-port", kafka_port)
    try:
        started = tidemark("up", *ports)
        shown = dict(line.split(maxsplit=1) for line in started.stdout.splitlines())
        assert shown["Kafka"] == f"127.0.0.1:{kafka_port}"
        for phase in ("starting Kafka", "starting Spark", "starting Airflow", "waiting for"):
            assert phase in started.stderr
        topics = AdminClient({"bootstrap.servers": shown["Kafka"]}).list_topics(timeout=30).topics
        assert set(SAMPLES) <= set(topics)
        with httpx2.Client(trust_env=False, timeout=60, follow_redirects=True) as browser:
            login = {"username": shown["login"], "password": shown["password"]}
            token = browser.post(f"{shown['Airflow']}/auth/token", json=login).json()
            bearer = {"Authorization": f"Bearer {token['access_token']}"}
            assert browser.get(shown["Console"]).status_code == 200
            page = browser.get(f"{shown['Airflow']}/tidemark/", headers=bearer).text
        assert 'href="/tidemark/pipelines/quiet"' in page
        paused = App(environ=environ).airflow().api().dags()
        assert paused["tidemark_quiet"] is False

        again = json.loads(tidemark("up", *ports, "--json").stdout)
        assert again["airflow"]["url"] == shown["Airflow"]
        assert again["spark"]["address"] == shown["Spark"]
    finally:
        stopped = json.loads(tidemark("down", "--json").stdout)
    assert not any(each["running"] for each in stopped.values())
    assert tidemark("down").stdout.startswith("stopped   nothing")

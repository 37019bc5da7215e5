"""Starting and stopping Airflow, with small processes in the place of `airflow`."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tidemark.core.errors import SetupError
from tidemark.dev.airflow_settings import AirflowPorts, environment, password_file
from tidemark.dev.airflow_standalone import AirflowStandalone
from tidemark.dev.errors import AirflowUnavailable
from tidemark.spec.layout import Layout

PORTS = AirflowPorts(api=1, worker_log=2, trigger_log=3)
# Like Airflow, which gives each task a process group of its own.
LIVES_WITH_A_TASK = "#!/bin/sh\nset -m\nsleep 600 &\nexec sleep 600\n"
DIES = "#!/bin/sh\necho 'sqlite3.DatabaseError: not a database'\nexit 1\n"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """This checkout, with a home of the test's own."""
    return Layout(project=PROJECT, home=tmp_path / "home")


@pytest.fixture
def fake_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is found where this Python's own `airflow` would be."""
    program = tmp_path / "bin" / "airflow"
    program.parent.mkdir()
    program.touch()
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(sys, "executable", str(program.parent / "python"))
    return program


def test_the_environment_keeps_connections_and_adds_a_local_spark(layout: Layout) -> None:
    """What the caller defines is not overwritten."""
    made = environment(layout, {"AIRFLOW_CONN_KAFKA_DEFAULT": "k", "PATH": "/bin"}, PORTS, 2)
    assert made["AIRFLOW_CONN_KAFKA_DEFAULT"] == "k"
    assert json.loads(made["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "local[2]"
    assert made["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert made["TIDEMARK_HOME"] == str(layout.home)
    kept = environment(layout, {"AIRFLOW_CONN_SPARK_DEFAULT": "s"}, PORTS, 2)
    assert kept["AIRFLOW_CONN_SPARK_DEFAULT"] == "s"


def test_tables_go_where_the_layout_says(tmp_path: Path) -> None:
    """A lakehouse elsewhere is handed on to the DAGs."""
    layout = Layout(project=PROJECT, home=tmp_path, lakehouse_root="s3://lake")
    assert environment(layout, {}, PORTS, 2)["TIDEMARK_LAKEHOUSE"] == "s3://lake"


def test_a_taken_port_is_refused_before_anything_starts(
    layout: Layout, fake_airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clear line that names the port."""
    monkeypatch.setattr("tidemark.spark.sockets._RELEASE_S", 0.2)
    fake_airflow.write_text(LIVES_WITH_A_TASK)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        airflow = AirflowStandalone(layout, os.environ, port=port)
        with pytest.raises(SetupError, match=f"Port {port} is in use"):
            airflow.start()
    assert airflow.status().processes == ()


def test_an_airflow_that_ends_at_once_is_named_with_its_last_words(
    layout: Layout, fake_airflow: Path
) -> None:
    """Not a time-out."""
    fake_airflow.write_text(DIES)
    with pytest.raises(SetupError, match="not a database"):
        AirflowStandalone(layout, os.environ).start()


def test_an_airflow_that_is_not_healthy_in_time_is_stopped_with_its_tasks(
    layout: Layout, fake_airflow: Path
) -> None:
    """No process is left, whatever process group it is in."""
    fake_airflow.write_text(LIVES_WITH_A_TASK)
    airflow = AirflowStandalone(layout, os.environ)
    with pytest.raises(AirflowUnavailable, match="did not start"):
        airflow.start(timeout_s=0.5)
    status = airflow.status()
    assert status.running is False
    assert status.processes == ()


def test_tasks_are_stopped_even_if_airflow_itself_was_killed(
    layout: Layout, fake_airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is what finds them."""
    fake_airflow.write_text(LIVES_WITH_A_TASK)
    airflow = AirflowStandalone(layout, os.environ)
    monkeypatch.setattr(airflow, "_wait_until_healthy", lambda *_: None)
    started = airflow.start()
    assert started.running is True
    main = json.loads((layout.airflow / "standalone.json").read_text())["pid"]
    try:
        os.kill(main, signal.SIGKILL)
    finally:
        stopped = airflow.stop()
    assert stopped.processes == ()


def test_stopping_what_never_started_is_no_error(layout: Layout) -> None:
    """`make down` may be called at any time."""
    status = AirflowStandalone(layout, os.environ).stop()
    assert status.running is False
    assert status.url == ""


def test_the_password_is_ours_alone(layout: Layout, fake_airflow: Path) -> None:
    """Made before Airflow would make one and print it; kept over restarts; not in records."""
    fake_airflow.write_text(DIES)
    airflow = AirflowStandalone(layout, os.environ)
    with pytest.raises(SetupError):
        airflow.start()
    first = airflow.status().password
    assert len(first) >= 12
    assert stat.S_IMODE(password_file(layout.airflow).stat().st_mode) == 0o600
    with pytest.raises(SetupError):
        airflow.start()
    assert airflow.status().password == first
    assert first not in json.dumps(airflow.status().as_record())


def test_nobody_answering_is_transient(layout: Layout, fake_airflow: Path) -> None:
    """The API's client says so by the type."""
    fake_airflow.write_text(DIES)
    airflow = AirflowStandalone(layout, os.environ)
    with pytest.raises(SetupError):
        airflow.start()
    with pytest.raises(AirflowUnavailable):
        airflow.api().dags()

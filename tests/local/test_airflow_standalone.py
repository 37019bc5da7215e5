"""Starting and stopping Airflow, with a small program instead of `airflow`."""

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
from tidemark.local.airflow_settings import AirflowPorts, environment, password_file
from tidemark.local.airflow_standalone import AirflowStandalone
from tidemark.local.errors import AirflowUnavailable
from tidemark.spec.layout import Layout

PORTS = AirflowPorts(api=1, worker_log=2, trigger_log=3)
# Like Airflow, which gives each task a process group of its own.
LIVES_WITH_A_TASK = "#!/bin/sh\nset -m\nsleep 600 &\nexec sleep 600\n"
DIES = "#!/bin/sh\necho 'sqlite3.DatabaseError: not a database'\nexit 1\n"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """This checkout, with a separate home."""
    return Layout(project=PROJECT, home=tmp_path / "home")


@pytest.fixture
def fake_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that replaces this Python's `airflow`."""
    program = tmp_path / "bin" / "airflow"
    program.parent.mkdir()
    program.touch()
    program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(sys, "executable", str(program.parent / "python"))
    return program


def test_the_environment_keeps_connections_and_adds_a_local_spark(layout: Layout) -> None:
    """A connection of the caller takes precedence."""
    made = environment(layout, {"AIRFLOW_CONN_KAFKA_DEFAULT": "k", "PATH": "/bin"}, PORTS)
    assert made["AIRFLOW_CONN_KAFKA_DEFAULT"] == "k"
    assert json.loads(made["AIRFLOW_CONN_SPARK_DEFAULT"])["host"] == "local[2]"
    assert made["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert made["TIDEMARK_HOME"] == str(layout.home)
    kept = environment(layout, {"AIRFLOW_CONN_SPARK_DEFAULT": "s"}, PORTS)
    assert kept["AIRFLOW_CONN_SPARK_DEFAULT"] == "s"


def test_a_remote_lakehouse_is_passed_to_the_dags(tmp_path: Path) -> None:
    """The environment contains its root."""
    layout = Layout(project=PROJECT, home=tmp_path, lakehouse_root="s3://lake")
    assert environment(layout, {}, PORTS)["TIDEMARK_LAKEHOUSE"] == "s3://lake"


def test_a_port_in_use_is_refused_before_airflow_starts(
    layout: Layout, fake_airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error contains the port."""
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


def test_the_error_for_an_airflow_that_ends_at_once_has_its_last_output(
    layout: Layout, fake_airflow: Path
) -> None:
    """The start must not wait for the timeout."""
    fake_airflow.write_text(DIES)
    with pytest.raises(SetupError, match="not a database"):
        AirflowStandalone(layout, os.environ).start()


def test_an_airflow_that_is_not_healthy_in_time_is_stopped_with_its_tasks(
    layout: Layout, fake_airflow: Path
) -> None:
    """Tasks have their own process groups."""
    fake_airflow.write_text(LIVES_WITH_A_TASK)
    airflow = AirflowStandalone(layout, os.environ)
    with pytest.raises(AirflowUnavailable, match="did not start"):
        airflow.start(timeout_s=0.5)
    status = airflow.status()
    assert status.running is False
    assert status.processes == ()


def test_stop_ends_tasks_after_airflow_itself_was_killed(
    layout: Layout, fake_airflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session identifies them."""
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


def test_stop_before_the_first_start_does_nothing(layout: Layout) -> None:
    """`make down` may run at any time."""
    status = AirflowStandalone(layout, os.environ).stop()
    assert status.running is False
    assert status.url == ""


def test_the_password_is_private_and_survives_restarts(layout: Layout, fake_airflow: Path) -> None:
    """Airflow would print a password of its own; records do not contain it."""
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
    assert first not in str(airflow.status().as_record())


def test_an_api_that_does_not_answer_is_a_transient_error(
    layout: Layout, fake_airflow: Path
) -> None:
    """A later request may succeed."""
    fake_airflow.write_text(DIES)
    airflow = AirflowStandalone(layout, os.environ)
    with pytest.raises(SetupError):
        airflow.start()
    with pytest.raises(AirflowUnavailable):
        airflow.api().dags()

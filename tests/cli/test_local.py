"""The commands of the Airflow of `tidemark up`, with Airflow's real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.core.errors import ExitCode

pytestmark = pytest.mark.slow

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


def test_airflow_is_refused_before_the_first_start(tmp_path: Path) -> None:
    """Airflow would create its database elsewhere."""
    ran = airflow(tmp_path, "dags", "list")
    assert (ran.returncode, ran.stdout) == (ExitCode.REFUSED, "")
    assert f"AirflowNotStarted: No Airflow was started in {tmp_path / 'airflow'}." in ran.stderr


def test_airflow_runs_with_the_settings_of_the_home(home: Path) -> None:
    ran = airflow(home, "config", "get-value", "database", "sql_alchemy_conn")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == f"sqlite:///{home / 'airflow'}/airflow.db"
    ran = airflow(home, "connections", "get", "spark_default", "--output", "json")
    assert json.loads(ran.stdout)[0]["conn_type"] == "spark"


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

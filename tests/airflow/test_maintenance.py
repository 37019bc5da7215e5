"""The tasks of the maintenance DAG, on tables without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.airflow.conftest import Answer, Probe, airflow_environment
from tests.conftest import PROJECT
from tests.support.file_lake import FileLake, home_lake
from tests.support.plans import make_spec
from tidemark.delta.data_table import DeltaDataTable
from tidemark.spec.ref import PipelineRef

PARAMS = {"keep_hours": 168, "keep_docs_days": 90, "dry_run": False}


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Two pipelines, one without a table."""
    return home_lake(tmp_path)


def ask(task_probe: Probe, lake: FileLake, task: str, **arguments: Any) -> Answer:
    """Call a task with the default params of the DAG, and with other ones."""
    home = lake.root.parent
    environ = {"TIDEMARK_HOME": str(home), "TIDEMARK_PIPELINES": str(home / "pipelines")}
    params = {**PARAMS, **arguments.pop("params", {})}
    return task_probe.ask("call_task", task=task, environ=environ, params=params, **arguments)


@pytest.mark.slow
def test_a_task_maintains_one_table(task_probe: Probe, lake: FileLake) -> None:
    """Covers a dry run and a pipeline without a table."""
    draft = ask(task_probe, lake, "maintain_table", pipeline="events", params={"dry_run": True})
    assert draft.value["result"]["outcome"] == "draft"
    assert len(DeltaTable(lake.uri).file_uris()) == 3
    done = ask(task_probe, lake, "maintain_table", pipeline="events").value["result"]
    assert (done["outcome"], done["files_after"]) == ("maintained", 1)
    assert lake.verified() == [(9, 9)]
    idle = ask(task_probe, lake, "maintain_table", pipeline="idle").value["result"]
    assert idle["outcome"] == "no table yet"


def test_a_refused_table_fails_without_a_retry(task_probe: Probe, lake: FileLake) -> None:
    """A retry would not help."""
    for task, arguments in (("maintain_table", {"pipeline": "events"}), ("maintain_shared", {})):
        answer = ask(task_probe, lake, task, params={"keep_hours": 1}, **arguments).value
        assert "RetentionTooShort" in answer["error"]
        assert answer["fails_now"] is True


def test_a_task_maintains_the_tables_that_pipelines_share(
    task_probe: Probe, lake: FileLake
) -> None:
    """The control table changes; missing tables and pages are no failure."""
    ledger = lake.ledger
    control, results, status, _, history = ask(task_probe, lake, "maintain_shared").value["result"]
    assert (control["table"], control["files_after"]) == ("control table", 1)
    assert (results["table"], results["outcome"]) == ("quality results", "no table yet")
    assert status["table"] == "status table"
    assert (history["table"], history["outcome"]) == ("status history", "no table yet")
    assert lake.ledger == ledger
    assert ask(task_probe, lake, "prune_data_docs").value == {"error": None, "result": 0}


@pytest.mark.airflow
def test_a_failed_table_stops_no_other_table_and_fails_the_run(lake: FileLake) -> None:
    """Airflow itself executes one run, with mapped tasks and default params."""
    home = lake.root.parent
    other = FileLake(
        lake.root, spec=make_spec(ref=PipelineRef("idle"), topic="events", target="bronze/idle")
    )
    DeltaDataTable(str(other.uri)).prepare("somebody")
    (home / "airflow").mkdir()
    environ = {
        **airflow_environment(home / "airflow"),
        "TIDEMARK_HOME": str(home),
        "TIDEMARK_PIPELINES": str(home / "pipelines"),
    }
    script = str(PROJECT / "tests" / "support" / "run_dag.py")
    migrate = [str(Path(sys.executable).parent / "airflow"), "db", "migrate"]
    subprocess.run(migrate, env=environ, check=True, capture_output=True, timeout=300)
    ran = subprocess.run(
        [sys.executable, script, "tidemark_maintenance", "2026-01-01T00:00:00+00:00"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 1
    assert "ForeignTable" in ran.stdout + ran.stderr
    assert len(DeltaTable(lake.uri).file_uris()) == 1
    control = DeltaTable(lake.control_uri)
    assert "compacted" in json.loads(control.history(1)[0]["userMetadata"])

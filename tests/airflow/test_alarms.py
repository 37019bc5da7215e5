"""Alarms of the DAGs: the status, failed tasks, and the webhook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.airflow.conftest import Probe
from tests.support.webhook import running_webhook
from tidemark.app.connections import kafka_connection
from tidemark.core.errors import InvalidSelection, TidemarkError
from tidemark.delta.table_io import query_rows
from tidemark.ops.report.errors import LagTooLarge

pytestmark = pytest.mark.slow

FAILED = {
    "task_instance": {"dag_id": "d", "task_id": "t", "run_id": "r"},
    "exception": "LostRange: x",
}
LAG = LagTooLarge(
    pipeline="prices",
    measures=("9 offsets are unread",),
    limits=("at most 5 (alarms.lag_records)",),
)


def test_a_failed_task_sends_an_alarm_to_the_webhook(task_probe: Probe) -> None:
    """The text contains the task and the error."""
    with running_webhook() as webhook:
        answer = task_probe.ask("alarm", environ=webhook.environ(), context=FAILED)
    assert webhook.requests == [("/secret-token", {"text": "d.t of r failed: LostRange: x"})]
    assert answer.value is None


def test_a_webhook_that_fails_changes_nothing(task_probe: Probe) -> None:
    """The run continues, and its log does not contain the URL."""
    with running_webhook(status=500) as webhook:
        answer = task_probe.ask("alarm", environ=webhook.environ(), context=FAILED)
    assert answer.value is None
    assert len(webhook.requests) == 1
    assert "alarm not sent" in answer.printed
    assert "secret-token" not in answer.printed


def test_without_a_webhook_the_alarm_is_in_the_log(task_probe: Probe) -> None:
    """The connection may be missing, or may have no URL."""
    nowhere = {"AIRFLOW_CONN_TIDEMARK_ALARM": json.dumps({"conn_type": "http"})}
    for environ in ({}, nowhere):
        answer = task_probe.ask("alarm", environ=environ, context=FAILED)
        assert answer.value is None
        assert "d.t of r failed: LostRange: x" in answer.printed


def test_the_status_of_all_pipelines_is_recorded_and_the_alarms_are_returned(
    task_probe: Probe, tmp_path: Path
) -> None:
    """A pipeline whose status cannot be read does not stop the others."""
    specs = tmp_path / "pipelines"
    specs.mkdir()
    for name, connection in (("a", "kafka_default"), ("b", "kafka_none")):
        (specs / f"{name}.yaml").write_text(
            f"name: {name}\ntopic: t\nschedule: '@daily'\nconnection: {connection}\n"
        )
    # Refused by the client itself.
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "none"}
    kafka = {"conn_type": "kafka", "extra": settings}
    environ = {
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_PIPELINES": str(specs),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka),
    }
    for _ in range(2):
        answer = task_probe.ask("call_task", task="record_status_of_all", environ=environ)
        assert [each["pipeline"] for each in answer.value["result"]] == ["a", "b"]
    rows = query_rows(DeltaTable(str(tmp_path / "lakehouse/control/status")), "SELECT * FROM t")
    assert sorted(row["pipeline"] for row in rows) == ["a", "b"]
    errors = {each["pipeline"]: each["alarms"][0]["error"] for each in answer.value["result"]}
    assert {row["pipeline"]: row["problem"] for row in rows} == errors
    assert errors["b"] == "InvalidConnection"

    # A registry of Airflow's backends counts as defined.
    registry = "decode: {registry: REGISTRY, value: {format: avro}}\n"
    spec = specs / "a.yaml"
    text = spec.read_text()
    environ["AIRFLOW_CONN_TRADES"] = json.dumps({"conn_type": "http", "extra": {"url": "x"}})
    for name, expected in (("trades", 0), ("undefined", 1)):
        spec.write_text(text + registry.replace("REGISTRY", name))
        answer = task_probe.ask("call_task", task="record_status_of_all", environ=environ)
        alarms = answer.value["result"][0]["alarms"]
        named = [each for each in alarms if repr(name) in each["problem"]]
        assert [each["error"] for each in named] == ["InvalidConnection"] * expected
    spec.write_text(text)

    # The charts of the console need the history, the alarms do not.
    log = tmp_path / "lakehouse" / "control" / "status_history" / "_delta_log"
    for file in log.glob("*.json"):
        file.write_text("{")
    answer = task_probe.ask("call_task", task="record_status_of_all", environ=environ)
    *others, unrecorded = answer.value["result"]
    assert {each["pipeline"] for each in others} == {"a", "b"}
    assert unrecorded["pipeline"] == "control/status"


@pytest.mark.parametrize(
    ("task", "arguments", "error", "command"),
    [
        (
            "finish_backfill",
            {"requested_by": "a run", "chunks": [1]},
            InvalidSelection.of_chunk(pipeline="prices", requested_by="a run", chunk=1, chunks=0),
            "Request the offsets again",
        ),
        ("raise_alarms", {"alarms": [LAG.as_record()]}, LAG, "`tidemark ingest prices`"),
    ],
)
def test_an_alarm_contains_the_fix_of_its_error(
    task_probe: Probe,
    tmp_path: Path,
    task: str,
    arguments: dict[str, Any],
    error: TidemarkError,
    command: str,
) -> None:
    """The cause is a failed task, or an alarm of a pipeline, which no retry helps."""
    with running_webhook() as webhook:
        kafka = {"AIRFLOW_CONN_KAFKA_DEFAULT": kafka_connection("127.0.0.1:1")}
        environ = {"TIDEMARK_HOME": str(tmp_path), **webhook.environ(), **kafka}
        task_probe.ask("alarm_of", task=task, environ=environ, pipeline="prices", **arguments)
    ((_, body),) = webhook.requests
    assert body["text"].startswith("d.t of r failed: ")
    assert f"{type(error).__name__}: {error}" in body["text"]
    assert f"{error.as_record()['fix']}" in body["text"]
    assert command in body["text"]

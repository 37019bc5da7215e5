"""What the DAGs tell: looks, alarms, and the webhook that hears of failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.airflow.conftest import Probe
from tests.support.webhook import listening
from tidemark.backfill.errors import UnknownBackfill
from tidemark.connections import kafka_connection
from tidemark.core.errors import TidemarkError
from tidemark.lake.table_io import query_rows
from tidemark.report.errors import LagTooLarge

FAILED = {
    "task_instance": {"dag_id": "d", "task_id": "t", "run_id": "r"},
    "exception": "LostRange: x",
}
LAG = LagTooLarge(pipeline="prices", lag=9, limit=5)


def test_a_failure_is_told_to_the_webhook(task_probe: Probe) -> None:
    """Which task, and the error's own words."""
    with listening() as webhook:
        answer = task_probe.ask("tell", environ=webhook.environ(), context=FAILED)
    assert webhook.heard == [("/secret-token", {"text": "d.t of r failed: LostRange: x"})]
    assert answer.value is None


def test_a_webhook_that_fails_changes_nothing(task_probe: Probe) -> None:
    """A run is not to fail because nobody listens; what is logged of it has no URL."""
    with listening(status=500) as webhook:
        answer = task_probe.ask("tell", environ=webhook.environ(), context=FAILED)
    assert answer.value is None
    assert len(webhook.heard) == 1
    assert "alarm not sent" in answer.printed
    assert "secret-token" not in answer.printed


def test_without_a_webhook_the_log_has_it(task_probe: Probe) -> None:
    """No connection is no error; nor is one without a URL."""
    nowhere = {"AIRFLOW_CONN_TIDEMARK_ALARM": json.dumps({"conn_type": "http"})}
    for environ in ({}, nowhere):
        answer = task_probe.ask("tell", environ=environ, context=FAILED)
        assert answer.value is None
        assert "d.t of r failed: LostRange: x" in answer.printed


def test_a_look_keeps_what_it_sees_and_returns_the_alarms(
    task_probe: Probe, tmp_path: Path
) -> None:
    """One pipeline that nobody can look at stops no other, and the table has them all."""
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
    told = {each["pipeline"]: each["alarms"][0]["error"] for each in answer.value["result"]}
    assert {row["pipeline"]: row["problem"] for row in rows} == told
    assert told["b"] == "UnknownConnection"


def test_an_alarm_fails_with_what_to_do(task_probe: Probe) -> None:
    """No retry helps; the message is the error's."""
    answer = task_probe.ask("call_task", task="raise_alarms", environ={}, pipeline="prices",
                            alarms=[LAG.as_record()])  # fmt: skip
    assert answer.value["fails_now"] is True
    assert f"prices: LagTooLarge: {LAG}" in answer.value["error"]


@pytest.mark.parametrize(
    ("task", "arguments", "error", "command"),
    [
        (
            "finish_backfill",
            {"requested_by": "a run", "chunks": [1]},
            UnknownBackfill(pipeline="prices", requested_by="a run", chunk=1, chunks=0),
            "Request the offsets again",
        ),
        ("raise_alarms", {"alarms": [LAG.as_record()]}, LAG, "`tidemark ingest prices`"),
    ],
)
def test_what_is_told_has_the_command_that_helps(
    task_probe: Probe,
    tmp_path: Path,
    task: str,
    arguments: dict[str, Any],
    error: TidemarkError,
    command: str,
) -> None:
    """Of a task that failed with a named error, and of an alarm: the error's own next step."""
    with listening() as webhook:
        kafka = {"AIRFLOW_CONN_KAFKA_DEFAULT": kafka_connection("127.0.0.1:1")}
        environ = {"TIDEMARK_HOME": str(tmp_path), **webhook.environ(), **kafka}
        task_probe.ask("tell_of", task=task, environ=environ, pipeline="prices", **arguments)
    ((_, body),) = webhook.heard
    assert body["text"].startswith("d.t of r failed: ")
    assert f"{type(error).__name__}: {error}" in body["text"]
    assert f"{error.as_record()['fix']}" in body["text"]
    assert command in body["text"]

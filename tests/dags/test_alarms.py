"""What the DAGs tell: looks, alarms, and the webhook that hears of failures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.dags.conftest import Probe
from tidemark.adapters.delta.rows import query
from tidemark.errors import LagTooLarge

FAILED = {
    "task_instance": {"dag_id": "d", "task_id": "t", "run_id": "r"},
    "exception": "LostRange: x",
}


class Webhook:
    """A server that keeps what it is told."""

    def __init__(self, status: int) -> None:
        heard: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                heard.append((self.path, json.loads(self.rfile.read(length))))
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.heard = heard
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def environ(self) -> dict[str, str]:
        """The connection that leads here."""
        url = f"http://127.0.0.1:{self.server.server_port}/secret-token"
        return {"AIRFLOW_CONN_TIDEMARK_ALARM": json.dumps({"conn_type": "http", "password": url})}


@pytest.fixture(params=[200])
def webhook(request: pytest.FixtureRequest) -> Iterator[Webhook]:
    """A webhook that answers with a status."""
    made = Webhook(request.param)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_a_failure_is_told_to_the_webhook(task_probe: Probe, webhook: Webhook) -> None:
    """Which task, and the error's own words."""
    answer = task_probe.ask("tell", environ=webhook.environ(), context=FAILED)
    assert webhook.heard == [("/secret-token", {"text": "d.t of r has failed: LostRange: x"})]
    assert answer.value is None


@pytest.mark.parametrize("webhook", [500], indirect=True)
def test_a_webhook_that_fails_changes_nothing(task_probe: Probe, webhook: Webhook) -> None:
    """A run is not to fail because nobody listens."""
    assert task_probe.ask("tell", environ=webhook.environ(), context=FAILED).value is None
    assert len(webhook.heard) == 1


def test_without_a_webhook_the_log_has_it(task_probe: Probe) -> None:
    """No connection is no error; nor is one without a URL."""
    nowhere = {"AIRFLOW_CONN_TIDEMARK_ALARM": json.dumps({"conn_type": "http"})}
    for environ in ({}, nowhere):
        assert task_probe.ask("tell", environ=environ, context=FAILED).value is None


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
        answer = task_probe.ask("call_task", task="look_at_all", environ=environ)
        assert [each["pipeline"] for each in answer.value["result"]] == ["a", "b"]
    rows = query(DeltaTable(str(tmp_path / "lakehouse/control/status")), "SELECT * FROM t")
    assert sorted(row["pipeline"] for row in rows) == ["a", "b"]
    told = {each["pipeline"]: each["alarms"][0]["error"] for each in answer.value["result"]}
    assert {row["pipeline"]: row["problem"] for row in rows} == told
    assert told["b"] == "UnknownConnection"


def test_an_alarm_fails_with_what_to_do(task_probe: Probe) -> None:
    """No retry helps; the message is the error's."""
    alarm = LagTooLarge(pipeline="prices", lag=9, most=5)
    answer = task_probe.ask("call_task", task="raise_alarms", environ={}, pipeline="prices",
                            alarms=[alarm.as_record()])  # fmt: skip
    assert answer.value["fails_now"] is True
    assert f"prices: LagTooLarge: {alarm}" in answer.value["error"]

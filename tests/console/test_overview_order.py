"""The order of the overview, and rows whose status the console has not read yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.console.test_pages import cells
from tests.support.consoles import SomeRights
from tests.support.file_lake import FileLake, home_lake
from tests.support.memory_consoles import memory_app, memory_console, memory_web
from tidemark.app.statuses import record_status
from tidemark.console.observer import StatusObserver
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks
from tidemark.delta.status_table import write_status


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipelines `events` with three landed plans, and `idle`, whose topic does not exist."""
    return home_lake(tmp_path)


def order(client: TestClient) -> list[str]:
    """Return the names of the rows of the overview."""
    body = client.get("/").text.partition("<tbody>")[2]
    return re.findall(r"<tr[^>]*>\s*<td>(?:<a[^>]*>)?([a-z]+)", body)


def test_pipelines_with_an_error_or_an_alarm_are_first(lake: FileLake, tmp_path: Path) -> None:
    (tmp_path / "pipelines" / "zero.yaml").write_text("name: zero\n")
    idle = tmp_path / "pipelines" / "idle.yaml"
    idle.write_text(f"{idle.read_text()}start: latest\n")
    client = memory_console(tmp_path, lake)
    for _ in range(2):
        assert order(client) == ["zero", "idle", "events"]
    lake.kafka.create("idle", 1, "id-7")
    assert order(memory_console(tmp_path, lake)) == ["zero", "events", "idle"]


# -- recorded statuses ---------------------------------------------------------------------------


class Blocked:
    """A log whose watermarks do not arrive before an event."""

    def __init__(self, kafka: Any) -> None:
        self._kafka = kafka
        self.arrives = Event()

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        assert self.arrives.wait(60)
        found: TopicWatermarks = self._kafka.topic_watermarks(topic, isolation_level)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kafka, name)


@pytest.fixture
def blocked(lake: FileLake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocked]:
    """The log of the home. The overview waits for no status."""
    monkeypatch.setattr(StatusObserver, "many", partialmethod(StatusObserver.many, wait_s=0))
    made = Blocked(lake.kafka)
    yield made
    made.arrives.set()


def row_of(client: TestClient, name: str) -> list[str]:
    """Return the row of a pipeline."""
    return next(row for row in cells(client.get("/").text) if row and row[0].startswith(name))


def test_a_row_has_the_recorded_status_until_the_console_has_read_its_own(
    lake: FileLake, tmp_path: Path, blocked: Any
) -> None:
    app = memory_app(tmp_path, lake)()
    record_status(app, {name: app.pipeline(name).report.status() for name in ("events", "idle")})
    lake.produce(5, 0)
    client = TestClient(memory_web(memory_app(tmp_path, lake, watermarks=blocked)))
    row = row_of(client, "events")
    assert row[1].startswith("ok")
    assert re.search(r"recorded .* agoreading", row[1])
    assert row[2] == "0"
    assert row_of(client, "idle")[1].startswith("TopicMissing")
    assert order(client) == ["idle", "events"]
    assert client.get("/").text.count('<tr class="stale">') == 2
    blocked.arrives.set()
    client.get("/pipelines/events")
    row = row_of(client, "events")
    assert "reading" not in row[1]
    assert row[2] == "5"


def test_a_recorded_lag_that_is_older_than_its_status_has_its_own_age(
    lake: FileLake, tmp_path: Path, blocked: Any
) -> None:
    table, now = memory_app(tmp_path, lake)().layout.status_table, datetime.now(UTC)
    old = {"checked_at": now - timedelta(hours=3), "lag_checked_at": now - timedelta(hours=3)}
    row = {"pipeline": "events", "topic": "events", "lag": 7, "lag_seconds": 60.0, **old}
    write_status(table, [row])
    write_status(table, [{"pipeline": "events", "topic": "events", "checked_at": now}])
    client = TestClient(memory_web(memory_app(tmp_path, lake, watermarks=blocked)))
    _, state, lag, behind, *_ = row_of(client, "events")
    assert re.search(r"recorded \d+ s agoreading", state)
    assert (lag, behind) == ("73 h ago", "1 min")


def test_recorded_statuses_of_another_topic_or_of_hidden_pipelines_are_not_shown(
    lake: FileLake, tmp_path: Path, blocked: Any
) -> None:
    table, now = memory_app(tmp_path, lake)().layout.status_table, datetime.now(UTC)
    row = {"checked_at": now, "lag_checked_at": now, "lag": 123_456, "state": "ok"}
    write_status(
        table,
        [
            {"pipeline": "events", "topic": "before", **row},
            {"pipeline": "idle", "topic": "idle", **row},
        ],
    )
    viewer = SomeRights(pipelines=["events"])
    client = TestClient(memory_web(memory_app(tmp_path, lake, watermarks=blocked), viewer))
    assert row_of(client, "events")[1] == "reading"
    assert "123,456" not in client.get("/").text


def test_a_damaged_status_table_leaves_the_rows_without_a_status(
    lake: FileLake, tmp_path: Path, blocked: Any
) -> None:
    log = Path(memory_app(tmp_path, lake)().layout.status_table) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{7:020}.json").write_text("{}\n")
    client = TestClient(memory_web(memory_app(tmp_path, lake, watermarks=blocked)))
    assert row_of(client, "events")[1] == "reading"

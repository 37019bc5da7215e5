"""The console shows a new, changed or removed spec at the next request."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tests.support.consoles import app_of, console_of
from tests.support.file_lake import home_lake
from tidemark.app.app import App
from tidemark.console.home import OVERDUE_S, RELOAD_S, UNREACHABLE_S, Home
from tidemark.core.plan_history import PlanEntry
from tidemark.delta.control_table import DeltaControlTable
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.local.broker_settings import HOST
from tidemark.spark.sockets import free_ports

SPEC = "name: {name}\ntopic: {name}\nschedule: '@daily'\n"


def test_specs_are_read_again_after_a_change(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "one.yaml").write_text(SPEC.format(name="one"))
    client = console_of(tmp_path)
    assert client.get("/pipelines/two").status_code == 404
    (folder / "two.yaml").write_text(SPEC.format(name="two"))
    assert client.get("/pipelines/two").status_code == 200
    (folder / "two.yaml").write_text("name: two\n")
    assert "SpecError" in client.get("/pipelines/two").text
    (folder / "two.yaml").unlink()
    assert client.get("/pipelines/two").status_code == 404


def test_connections_are_read_again_after_a_minute(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    now = 0.0
    home = Home(app_of(tmp_path), clock=lambda: now)
    first = home.app
    now = RELOAD_S
    assert home.app is first
    now += 1
    assert home.app is not first


def test_pages_do_not_wait_for_connections_that_are_read_again(tmp_path: Path) -> None:
    """A store of secrets can be slow, and `/health` must answer."""
    (tmp_path / "pipelines").mkdir()
    load, now = app_of(tmp_path), 0.0
    begun, may_end = Event(), Event()
    may_end.set()

    def slow_load() -> App:
        begun.set()
        assert may_end.wait(60)
        return load()

    home = Home(slow_load, clock=lambda: now)
    first = home.app
    now = RELOAD_S + 1
    begun.clear()
    may_end.clear()
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(lambda: home.app)
        assert begun.wait(60)
        now = 3 * RELOAD_S
        assert home.app is first
        now = RELOAD_S + 1 + OVERDUE_S
        assert home.overdue_load_s is None
        now += 1
        assert home.overdue_load_s == OVERDUE_S + 1
        may_end.set()
        # The age of the loaded app begins at the end of its load.
        assert loading.result() is home.app is not first
        assert home.overdue_load_s is None


def test_plans_are_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages refresh every few seconds, and a long control table takes long to read."""
    lake = home_lake(tmp_path)
    home = Home(app_of(tmp_path))
    reads: list[tuple[str, int, int]] = []
    read = DeltaControlTable.plan_history

    def counted(table: DeltaControlTable, pipeline: str, first: int, end: int) -> list[PlanEntry]:
        reads.append((pipeline, first, end))
        return read(table, pipeline, first, end)

    def shown(before: int | None = None) -> list[int]:
        return [entry.record.plan.sequence for entry in home.plans("events", before, 2)]

    monkeypatch.setattr(DeltaControlTable, "plan_history", counted)
    assert [shown(), shown(), shown(2), shown(2)] == [[3, 2], [3, 2], [1], [1]]
    assert reads == [("events", 2, 4), ("events", 1, 2)]
    lake.run(1)
    assert shown() == shown() == [4, 3]
    assert len(reads) == 3
    monkeypatch.setattr("tidemark.console.home.KNOWN_PLANS", 1)
    assert [shown(2), shown()] == [[1], [4, 3]]
    assert len(reads) == 5


@pytest.mark.slow
def test_an_outage_of_kafka_delays_only_the_first_of_many_pipelines(tmp_path: Path) -> None:
    """The waits of later pipelines are short, until `UNREACHABLE_S` has passed."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    for name in ("one", "two", "three"):
        (folder / f"{name}.yaml").write_text(SPEC.format(name=name))
    (port,) = free_ports(HOST, 1)
    load = app_of(tmp_path, f"{HOST}:{port}")
    now = 0.0
    home = Home(lambda: replace(load(), kafka_timeout_s=3.0), clock=lambda: now)

    def waited_s(pipeline: str) -> float:
        started = time.monotonic()
        found = home.statuses.one(pipeline, wait_s=30).status
        assert found is not None
        assert isinstance(found.kafka_error, KafkaUnavailable)
        return time.monotonic() - started

    first = waited_s("one")
    assert waited_s("two") < first / 2
    now = UNREACHABLE_S
    assert waited_s("three") > first / 2

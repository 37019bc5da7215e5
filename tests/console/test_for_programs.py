"""`/health` and `/metrics`: independent of slow pages, and complete for invalid specs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import httpx
import pytest

from tests.support.consoles import SomeRights, served
from tests.support.file_lake import FileLake, home_lake
from tests.support.memory import MemoryKafka
from tests.support.memory_consoles import memory_app, memory_console, memory_web
from tests.support.waiting import wait_until
from tidemark.app.app import App
from tidemark.app.statuses import record_status
from tidemark.console import home, server
from tidemark.console.server import PROGRAM_WORKERS, WORKERS, WORKERS_IN_AIRFLOW
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks


class SlowReaders:
    """A log that answers no reader before an event."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self.asked = Semaphore(0)
        self.may_answer = Event()

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        self.asked.release()
        assert self.may_answer.wait(120)
        return self._kafka.topic_watermarks(topic, isolation_level)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kafka, name)


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times of pages, and few threads."""
    monkeypatch.setattr(server, "PAGE_S", 1)
    monkeypatch.setattr(server, "MOST_THREADS", 2 * WORKERS)
    monkeypatch.setattr(server, "MOST_PROGRAM_THREADS", PROGRAM_WORKERS)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[SlowReaders, str]]:
    """A slow log, and the address of its console."""
    lake = home_lake(tmp_path)
    readers: Any = SlowReaders(lake.kafka)
    with served(memory_web(memory_app(tmp_path, lake, watermarks=readers))) as address:
        try:
            yield readers, address
        finally:
            readers.may_answer.set()


def test_pages_that_wait_for_kafka_delay_neither_health_nor_metrics(
    slow: tuple[SlowReaders, str],
) -> None:
    kafka, address = slow
    page = f"{address}/pipelines/events/backfill?retained=true"
    with (
        ThreadPoolExecutor(WORKERS + 1) as threads,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        pages = [threads.submit(client.get, page) for _ in range(WORKERS + 1)]
        try:
            for _ in range(WORKERS):
                assert kafka.asked.acquire(timeout=60)
            for path in ("health", "metrics"):
                assert client.get(f"{address}/{path}", timeout=20).status_code == 200
            assert not any(each.done() for each in pages)
        finally:
            kafka.may_answer.set()
        assert {each.result().status_code for each in pages} == {200}


@pytest.mark.slow
@pytest.mark.usefixtures("few_threads")
def test_pages_that_never_end_delay_only_pages_and_for_a_limited_time(
    slow: tuple[SlowReaders, str],
) -> None:
    """Storage that does not answer would otherwise block every page after four requests."""
    kafka, address = slow
    page = f"{address}/pipelines/events/backfill?retained=true"
    with (
        ThreadPoolExecutor(WORKERS) as threads,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        for _ in range(2):
            ended = [threads.submit(client.get, page) for _ in range(WORKERS)]
            answers = [each.result() for each in ended]
            assert {each.status_code for each in answers} == {503}
            assert all("PageTimeout" in each.text for each in answers)
        # The threads of these pages still wait, so none is added.
        refused = client.get(page)
        assert (refused.status_code, refused.elapsed < timedelta(seconds=1)) == (503, True)
        for path in ("health", "metrics"):
            assert client.get(f"{address}/{path}").status_code == 200
        kafka.may_answer.set()
        wait_until(lambda: client.get(page).status_code == 200)


@pytest.mark.usefixtures("few_threads")
def test_requests_of_programs_that_never_end_are_limited(tmp_path: Path) -> None:
    """A program repeats its request, and each repetition would add a thread."""
    load, may_end = memory_app(tmp_path, home_lake(tmp_path)), Event()

    def slow_load() -> App:
        assert may_end.wait(120)
        return load()

    with (
        served(memory_web(slow_load)) as address,
        ThreadPoolExecutor(PROGRAM_WORKERS) as threads,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        try:
            health = f"{address}/health"
            ended = [threads.submit(client.get, health) for _ in range(PROGRAM_WORKERS)]
            assert {each.result().status_code for each in ended} == {503}
            refused = client.get(health)
            assert (refused.status_code, refused.elapsed < timedelta(seconds=1)) == (503, True)
        finally:
            may_end.set()
        wait_until(lambda: client.get(health).status_code == 200)


@pytest.mark.slow
def test_the_console_in_airflow_builds_at_most_two_pages_at_once(tmp_path: Path) -> None:
    """More threads would delay Airflow's own requests."""
    lake = home_lake(tmp_path)
    readers: Any = SlowReaders(lake.kafka)
    web = memory_web(memory_app(tmp_path, lake, watermarks=readers), airflow="")
    with served(web) as address, ThreadPoolExecutor(WORKERS) as threads:
        page = f"{address}/pipelines/events/backfill?retained=true"
        get = partial(httpx.get, page, trust_env=False, timeout=60)
        pages = [threads.submit(get) for _ in range(WORKERS)]
        try:
            for _ in range(WORKERS_IN_AIRFLOW):
                assert readers.asked.acquire(timeout=60)
            # Without the limit, a third page would read Kafka within milliseconds.
            assert not readers.asked.acquire(timeout=1)
        finally:
            readers.may_answer.set()
        assert {each.result().status_code for each in pages} == {200}


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events`, whose spec has become invalid, with an alarm, beside pipeline `idle`."""
    lake = home_lake(tmp_path)
    lake.produce(5, 0)
    lake.kafka.delete_records("events", 0, 12)
    app = memory_app(tmp_path, lake)()
    record_status(app, {name: app.pipeline(name).report.status() for name in ("events", "idle")})
    (tmp_path / "pipelines" / "events.yaml").write_text("name: events\nschedul: x\n")
    return lake


def test_a_spec_that_becomes_invalid_ends_no_alarm(lake: FileLake, tmp_path: Path) -> None:
    lines = memory_console(tmp_path, lake).get("/metrics").text.splitlines()
    assert 'tidemark_problem{pipeline="events",error="LostRange"} 1' in lines
    assert "tidemark_pipelines 2" in lines
    assert "tidemark_invalid_specs 1" in lines


def test_health_has_the_number_of_invalid_specs(lake: FileLake, tmp_path: Path) -> None:
    """It has no names, so it is for every viewer."""
    for viewer in (SomeRights(), SomeRights(pipelines=[])):
        health = memory_console(tmp_path, lake, viewer).get("/health")
        expected = {"status": "ok", "invalid_specs": 1, "stale_seconds": None}
        assert (health.status_code, health.json()) == (200, expected)


def test_health_and_pages_report_a_load_of_specs_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, pages would show old specs without a note."""
    monkeypatch.setattr(home, "OVERDUE_S", 0)
    load = memory_app(tmp_path, home_lake(tmp_path))
    begun, may_end, loads = Event(), Event(), list[App]()

    def slow_load() -> App:
        if loads:
            begun.set()
            assert may_end.wait(120)
        loads.append(load())
        return loads[-1]

    with (
        served(memory_web(slow_load)) as address,
        ThreadPoolExecutor(1) as threads,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        pages = [f"{address}{path}" for path in ("/", "/pipelines/unknown")]
        note = "Specs and connections have been loading since 20"
        assert [note in client.get(page).text for page in pages] == [False, False]
        (tmp_path / "pipelines" / "events.yaml").write_text("name: events\n")
        loading = threads.submit(client.get, pages[0])
        try:
            assert begun.wait(60)
            health = client.get(f"{address}/health")
            assert health.status_code == 503
            seconds = health.json()["stale_seconds"]
            expected = {"status": "stale", "invalid_specs": 0, "stale_seconds": seconds}
            assert health.json() == expected
            assert isinstance(seconds, int)
            shown = [client.get(page) for page in pages]
            assert [each.status_code for each in shown] == [200, 404]
            assert [note in each.text for each in shown] == [True, True]
        finally:
            may_end.set()
        assert note not in loading.result().text
        assert client.get(f"{address}/health").json()["status"] == "ok"


def test_metrics_of_an_invalid_spec_need_the_right_to_see_it(
    lake: FileLake, tmp_path: Path
) -> None:
    """The number of invalid specs, which has no name, is for every viewer."""
    some = memory_console(tmp_path, lake, SomeRights(pipelines=["events", "idle"]))
    lines = some.get("/metrics").text.splitlines()
    assert [line for line in lines if 'pipeline="events"' in line] == []
    assert "tidemark_pipelines 1" in lines
    assert "tidemark_invalid_specs 1" in lines

"""The page of a pipeline over a log in memory: its bars, their cautions, and errors of parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from shutil import rmtree
from threading import Barrier, Event, get_ident
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from starlette.testclient import TestClient

from tests.console.test_pages import cells
from tests.ops.report.test_cluster import FixedCluster
from tests.support.consoles import SomeRights, app_of, console_of, record_check
from tests.support.file_lake import FileLake, home_lake
from tests.support.memory import MemoryKafka, MemoryPartition
from tests.support.memory_consoles import memory_app, memory_console, memory_web
from tests.support.page_text import text_of
from tests.support.quality_reports import REPORT
from tests.support.typed_lake import home_typed_lake
from tests.support.waiting import wait_until
from tidemark.app.report import ReportPart
from tidemark.console.guard import LastDagRun
from tidemark.console.home import Home
from tidemark.console.observer import StatusObserver
from tidemark.console.pipelines import BARS
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import ControlConflict
from tidemark.delta.status_history import append_statuses
from tidemark.ops.report.coverage import KnownWatermarks, OffsetState
from tidemark.ops.report.coverage_rows import CoverageReader
from tidemark.ops.report.observed_status import ObservedStatus
from tidemark.ops.report.status import PipelineStatus


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events` with three landed plans."""
    return home_lake(tmp_path)


def test_the_partitions_with_the_most_severe_states_have_bars(
    lake: FileLake, tmp_path: Path
) -> None:
    partitions = lake.kafka.topics["events"]
    partitions |= {number: MemoryPartition() for number in range(2, 100)}
    for number in range(2, 95):
        lake.produce(1, number)
    lake.run(1, 80)
    lake.produce(50, 80)
    lake.kafka.delete_records("events", 80, 30)
    page = memory_console(tmp_path, lake).get("/pipelines/events").text
    labels = re.findall(r'<a class="label"[^>]*>(\d+)<', page)
    assert len(labels) == BARS
    assert labels[0] == "80"
    assert "state-lost" in page.partition('<ul class="legend">')[2].partition("</ul>")[0]
    others = "36 more partitions, by most severe state: 30 landed, 6 without offsets"
    assert others in text_of(page)


def test_rows_that_an_undo_removes_meanwhile_are_not_missing(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page opens each table once, and compares its ledger with the newest one at the end."""
    client, read = memory_console(tmp_path, lake), DeltaDataTable.spans_by_plan

    def undo_and_read(table: DeltaDataTable, *arguments: Any) -> Any:
        if lake.ledger.plans[1].held_now:
            with ThreadPoolExecutor(1) as other:
                other.submit(lake.undo.undo, 1, "ops", "wrong").result()
        return read(table, *arguments)

    monkeypatch.setattr(DeltaDataTable, "spans_by_plan", undo_and_read)
    page = text_of(client.get("/pipelines/events?partition=0").text)
    assert lake.ledger.plans[1].held_now is None
    assert "unread" in page
    assert "missing" not in page


def page_beside(
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[], object],
    *,
    reads_first: bool,
) -> str:
    """Return the text of a page, if `change` happens once beside the read of the watermarks.

    Args:
        client: Client of the console.
        monkeypatch: Wraps the read.
        change: What another process does.
        reads_first: Whether it happens after the read; before it otherwise.
    """
    read, changes = CoverageReader.watermarks, [change]

    def read_beside(coverage: CoverageReader) -> KnownWatermarks:
        known = read(coverage) if reads_first else None
        if changes:
            changes.pop()()
        return known or read(coverage)

    monkeypatch.setattr(CoverageReader, "watermarks", read_beside)
    page = text_of(client.get("/pipelines/events").text)
    assert not changes
    return page


def test_offsets_that_land_and_expire_meanwhile_are_not_lost(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def land_and_expire() -> None:
        lake.run(4)
        lake.kafka.delete_records("events", 0, lake.kafka.topics["events"][0].end)

    client = memory_console(tmp_path, lake)
    page = page_beside(client, monkeypatch, land_and_expire, reads_first=False)
    assert "lost" not in page


def test_a_recreation_that_is_accepted_meanwhile_is_no_error(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watermarks are read again."""

    def recreate() -> None:
        lake.kafka.create("events", 2, "id-2")
        lake.decisions.accept_recreation("ops", "recreated")

    client = memory_console(tmp_path, lake)
    page = page_beside(client, monkeypatch, recreate, reads_first=True)
    assert "TopicRecreated" not in page.partition("Coverage of events")[2]


def test_the_plans_of_the_page_are_not_older_than_its_status(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan lands during the wait for the status."""
    client, one = memory_console(tmp_path, lake), StatusObserver.one

    def land_and_wait(statuses: StatusObserver, name: str, wait_s: float) -> ObservedStatus:
        if wait_s:
            with ThreadPoolExecutor(1) as other:
                other.submit(lake.run, 4).result()
        return one(statuses, name, wait_s)

    monkeypatch.setattr(StatusObserver, "one", land_and_wait)
    page = client.get("/pipelines/events").text
    assert f'plans/{lake.ledger.last_sequence}"' in page


def test_accepted_losses_have_a_sentence_with_a_link_to_the_first(
    lake: FileLake, tmp_path: Path
) -> None:
    lake.produce(6, 0)
    lake.kafka.delete_records("events", 0, 13)
    client = memory_console(tmp_path, lake)
    sentence = "The loss of 4 offsets was accepted. The first is offset 9 of partition 0."
    assert sentence not in text_of(client.get("/pipelines/events").text)
    lake.decisions.accept_loss((), "ops", "retention")
    page = client.get("/pipelines/events").text
    assert sentence in text_of(page).replace(" .", ".")
    (link,) = re.findall('<a href="([^"]+)">offset 9 of partition 0</a>', page)
    record = text_of(client.get(unescape(link)).text.partition("<article")[2])
    assert "table: lost" in record
    assert sentence not in text_of(client.get("/pipelines/events?partition=1").text)


def test_bars_that_read_no_rows_have_a_caution(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing row is visible only where the page reads rows."""
    DeltaTable(lake.uri).delete('partition = 0 AND "offset" = 4')
    client = memory_console(tmp_path, lake)
    assert "Rows are not read here" in text_of(client.get("/pipelines/events").text)
    zoomed = client.get("/pipelines/events?partition=0").text
    assert "state-missing" in zoomed
    assert "Rows are not read" not in text_of(zoomed)
    monkeypatch.setattr("tidemark.ops.report.coverage_rows.MOST_BYTES", 0)
    large = client.get("/pipelines/events?partition=0").text
    assert "state-missing" not in large
    assert "Rows are not read: too many" in text_of(large)


def test_bars_of_a_table_that_differs_from_the_control_table_are_grey(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = memory_console(tmp_path, lake)
    assert '<div class="bars">' in client.get("/pipelines/events").text
    DeltaTable(lake.uri).restore(1)
    note, status = "the data table does not confirm them: TableBehindLedger", ReportPart.status
    client = memory_console(tmp_path, lake)
    for _ in range(2):
        page = client.get("/pipelines/events").text
        assert '<div class="bars stale">' in page
        assert note in text_of(page)
        assert ("ControlConflict" in page) == (ReportPart.status is not status)
        # A failed read of the status does not hide the known difference.
        conflict = Mock(side_effect=ControlConflict(pipeline="events", event_number=7))
        monkeypatch.setattr(ReportPart, "status", conflict)
        monkeypatch.setattr("tidemark.console.observer.FRESH_S", -1.0)
        monkeypatch.setattr("tidemark.console.observer.REST", 0)


@pytest.mark.parametrize("damage", ["log removed", "table is a file", "commit damaged"])
def test_bars_of_a_table_that_cannot_be_read_are_grey(
    lake: FileLake, tmp_path: Path, damage: str
) -> None:
    log = lake.uri / "_delta_log"
    if damage == "commit damaged":
        max(log.glob("*.json")).write_text("{")
    elif damage == "log removed":
        rmtree(log)
    else:
        rmtree(lake.uri)
        lake.uri.write_text("a file")
    page = memory_console(tmp_path, lake).get("/pipelines/events").text
    assert '<div class="bars stale">' in page
    assert "the data table does not confirm them" in text_of(page)


def test_bars_are_grey_until_the_tables_were_compared(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, status = Event(), ReportPart.status

    def slow(report: ReportPart) -> PipelineStatus:
        assert end.wait(60)
        return status(report)

    monkeypatch.setattr(ReportPart, "status", slow)
    monkeypatch.setattr("tidemark.console.pipelines.STATUS_WAIT_S", 0)
    client = memory_console(tmp_path, lake)
    page = client.get("/pipelines/events").text
    end.set()
    assert '<div class="bars stale">' in page
    assert "The data table has not been compared with it yet." in text_of(page)
    wait_until(lambda: '<div class="bars">' in client.get("/pipelines/events").text)


def test_the_page_shows_since_when_a_problem_is_recorded(lake: FileLake, tmp_path: Path) -> None:
    """Nothing without a recorded status of the same problem."""
    lake.produce(9, 0)
    lake.kafka.delete_records("events", 0, lake.kafka.topics["events"][0].end)
    page = text_of(memory_console(tmp_path, lake).get("/pipelines/events").text)
    assert "LostRange" in page
    assert "(recorded)" not in page
    now = datetime.now(UTC)
    times = {"ok": now - timedelta(minutes=40), "LostRange": now - timedelta(minutes=20)}
    rows = [{"pipeline": "events", "checked_at": at, "state": state} for state, at in times.items()]
    append_statuses(memory_app(tmp_path, lake)().layout.status_history, rows)
    page = text_of(memory_console(tmp_path, lake).get("/pipelines/events").text)
    assert f"LostRange since {times['LostRange']:%Y-%m-%d %H:%M:%S} UTC (recorded)." in page


def test_a_page_that_reads_rows_does_not_refresh(lake: FileLake, tmp_path: Path) -> None:
    client = memory_console(tmp_path, lake)
    assert "hx-get" in client.get("/pipelines/events").text
    for window in ("partition=0", "partition=0&start=2&end=5"):
        zoomed = client.get(f"/pipelines/events?{window}").text
        assert "hx-get" not in zoomed
        assert "does not refresh" in zoomed
        assert "Pause refresh" not in zoomed


def links_of(page: str) -> list[str]:
    """Return the addresses to which a page links."""
    return [unescape(link) for link in re.findall(r'<a [^>]*href="([^"#][^"]*)"', page)]


def test_a_zoomed_bar_links_to_a_wider_window_and_to_the_plans_of_its_offsets(
    lake: FileLake, tmp_path: Path
) -> None:
    zoomed = memory_console(tmp_path, lake).get("/pipelines/events?partition=0&start=4&end=5").text
    assert [link for link in links_of(zoomed) if re.search(r"plans/\d", link)] == [
        "/pipelines/events/plans/2"
    ]
    (out,) = re.findall(r'<a href="([^"]*)">zoom out</a>', zoomed)
    assert unescape(out) == "/pipelines/events?partition=0&start=0&end=9"
    whole = memory_console(tmp_path, lake).get(unescape(out)).text
    assert "zoom out" not in whole


@pytest.mark.slow
def test_each_link_of_a_zoomed_page_and_of_the_quarantine_leads_to_a_page(tmp_path: Path) -> None:
    typed = home_typed_lake(tmp_path)
    typed.broken = (1,)
    typed.land_values([b"one", b"two", b"three"])
    typed.run()
    app = replace(memory_app(tmp_path, typed.bronze)(), cluster_reader=FixedCluster())
    client = TestClient(memory_web(lambda: app))
    zoomed = client.get("/pipelines/events?partition=0&start=0&end=2").text
    quarantine = client.get("/pipelines/events/quarantine").text
    links = {*links_of(zoomed), *links_of(quarantine)}
    assert len(links) > 10
    assert {link: client.get(link).status_code for link in links} == dict.fromkeys(links, 200)


def test_a_cut_table_of_plans_has_the_number_of_the_others(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.console.pipelines.PLAN_SPANS", 2)
    page = text_of(memory_console(tmp_path, lake).get("/pipelines/events?partition=0").text)
    assert "1 more: select a smaller part of the bar." in page
    monkeypatch.setattr("tidemark.console.pipelines.PLAN_SPANS", 3)
    page = text_of(memory_console(tmp_path, lake).get("/pipelines/events?partition=0").text)
    assert "more: select" not in page


def test_empty_values_of_the_address_are_absent(lake: FileLake, tmp_path: Path) -> None:
    client = memory_console(tmp_path, lake)
    for empty, absent in (
        ("?partition=&start=&end=", ""),
        ("/plans?before=", "/plans"),
        ("/records?partition=&offset=&time=", "/records"),
    ):
        found = client.get(f"/pipelines/events{empty}")
        assert found.status_code == 200
        assert text_of(found.text) == text_of(client.get(f"/pipelines/events{absent}").text)
    assert client.get("/pipelines/events?start=x").status_code == 400


def test_the_last_page_of_offsets_has_no_later_one(lake: FileLake, tmp_path: Path) -> None:
    client = memory_console(tmp_path, lake)
    assert 'rel="next"' in client.get(f"/pipelines/events/records?offset={2**62 - 50}").text
    last = client.get(f"/pipelines/events/records?offset={2**62 - 49}")
    assert (last.status_code, 'rel="next"' in last.text) == (200, False)


class MeetingReaders:
    """A log whose readers wait for each other before their first watermarks."""

    def __init__(self, kafka: MemoryKafka, readers: int) -> None:
        self._kafka = kafka
        self._barrier = Barrier(readers)
        self._met: set[int] = set()

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        if get_ident() not in self._met:
            self._met.add(get_ident())
            self._barrier.wait(30)
        return self._kafka.topic_watermarks(topic, isolation_level)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kafka, name)


def test_status_and_coverage_wait_for_kafka_at_the_same_time(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that does not answer delays the page by one timeout."""
    monkeypatch.setattr("tidemark.console.pipelines.STATUS_WAIT_S", 60)
    both: Any = MeetingReaders(lake.kafka, readers=2)
    client = TestClient(memory_web(memory_app(tmp_path, lake, watermarks=both)))
    page = client.get("/pipelines/events").text
    assert "state-landed" in page
    assert "<dt>lag</dt><dd>0</dd>" in page


def test_a_quarantine_of_too_many_places_is_shown_in_a_smaller_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer could otherwise make each view of the page read a million spans."""
    monkeypatch.setattr("tidemark.ops.report.coverage_rows.MOST_SPANS", 2)
    typed = home_typed_lake(tmp_path)
    typed.broken = (0, 2, 4)
    typed.land_values([b"record"] * 5)
    typed.run()
    client = memory_console(tmp_path, typed.bronze)
    note = "Quarantined offsets are not shown"
    whole = client.get("/pipelines/events").text
    assert note in whole
    assert 'class="density"' not in whole
    part = client.get("/pipelines/events?partition=0&start=0&end=3").text
    assert note not in part
    assert 'aria-label="partition 0: 2 of 3 offsets quarantined, in a part at most 100 %"' in part
    zoomed = memory_app(tmp_path, typed.bronze)().pipeline("events").report.coverage.read(0, 0, 3)
    assert zoomed.partitions[0].states[OffsetState.QUARANTINED] == SpanSet((Span(0, 1), Span(2, 3)))


def test_a_line_of_the_status_links_to_its_plans_and_to_the_quarantine(tmp_path: Path) -> None:
    typed = home_typed_lake(tmp_path)
    typed.broken = (1,)
    typed.land_values([b"one", b"two"])
    typed.run()
    pipeline = app_of(tmp_path)().pipeline("events")
    (rule,) = REPORT.results
    typed.land_values([b"three"])
    record_check(pipeline, 1, replace(rule, passed=False))
    record_check(pipeline, 2, replace(rule, passed=False))
    typed.bronze.plan(1)
    page = console_of(tmp_path).get("/pipelines/events").text
    links = dict(re.findall(r'<a href="([^"]+)">([^<]+)</a>', page.partition("<h2>")[0]))
    assert links["/pipelines/events/plans/3"] == "plan 3"
    assert links["/pipelines/events/quarantine"] == "1 record in quarantine"
    blocked = [links[f"/pipelines/events/plans/{number}"] for number in (1, 2)]
    assert blocked == ["1", "2"]
    assert "a quality check blocked plans 1 , 2" in text_of(page)


def test_the_page_accounts_for_every_landed_record(tmp_path: Path) -> None:
    """A typed row that another program deleted is a problem."""
    typed = home_typed_lake(tmp_path)
    typed.land_and_run(3, 1)
    page = text_of(console_of(tmp_path).get("/pipelines/events").text)
    assert "records landed 3" in page
    assert "typed rows 2 quarantine 1" in page
    assert "Typed table: 3 landed records = 2 typed rows + 1 record in quarantine." in page
    assert "neither" not in page
    DeltaTable(typed.typed_uri).delete('"offset" = 2')
    page = text_of(console_of(tmp_path).get("/pipelines/events").text)
    assert (
        "1 landed record is neither in the typed table nor in quarantine: "
        "tidemark verify events finds the difference"
    ) in page


def test_the_table_of_offsets_has_the_lag_of_each_partition(lake: FileLake, tmp_path: Path) -> None:
    """It is open while there is a lag. Bars come from the coverage, lags from the status."""

    def details(page: str) -> str:
        (found,) = re.findall(
            r"<details[^>]*>\s*<summary>Offsets by state.*?</details>", page, re.S
        )
        return found

    client = memory_console(tmp_path, lake)
    caught_up = details(client.get("/pipelines/events").text)
    assert caught_up.startswith("<details>")
    lake.kafka.topics["events"][2] = MemoryPartition()
    lake.produce(4, 0)
    lake.kafka.retention = timedelta(days=20_000_000)
    behind = details(memory_console(tmp_path, lake).get("/pipelines/events").text)
    assert behind.startswith("<details open>")
    heads = re.findall(r"<th[^>]*>([^<]+)</th>", behind)
    assert heads[:7] == [
        *("partition", "low watermark", "committed offset", "end", "lag", "behind", "runway")
    ]
    rows = [row for row in cells(behind) if row]
    assert [(row[0], row[4]) for row in rows] == [("0", "4"), ("1", "0"), ("2", "0")]
    assert all(re.match(r"[\d,]+ d", text) for text in rows[0][5:7])
    assert rows[1][5:7] == ["-", "-"]


def test_an_old_status_shows_that_it_is_being_read(
    lake: FileLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page was open for minutes, so the page shows earlier values until the read ends."""
    paths, may_end, read = ("/pipelines/events", "/"), Event(), Home._status

    def blocked(home: Home, pipeline: str) -> PipelineStatus:
        may_end.wait(60)
        return read(home, pipeline)

    monkeypatch.setattr(Home, "_status", blocked)
    client = memory_console(tmp_path, lake)
    may_end.set()
    assert not any("ago, reading" in client.get(path).text for path in paths)
    may_end.clear()
    for name in (
        "observer.FRESH_S",
        "observer.OVERDUE_S",
        "observer.REST",
        "pipelines.STATUS_WAIT_S",
    ):
        monkeypatch.setattr(f"tidemark.console.{name}", 0)
    monkeypatch.setattr("tidemark.console.observer.READS_PER_SECOND", 1e9)
    pages = [client.get(path).text for path in paths]
    may_end.set()
    assert all(re.search(r"\d s ago, reading", page) for page in pages)


def test_a_pipeline_whose_dag_is_paused_has_no_forecast(lake: FileLake, tmp_path: Path) -> None:
    lake.produce(4, 0)
    load, viewer = memory_app(tmp_path, lake), SomeRights(paused=["tidemark_events"])
    client = TestClient(memory_web(load, viewer, airflow="/base"))
    page = client.get("/pipelines/events").text
    assert (
        "DAG tidemark_events is paused: no scheduled run lands records of its pipelines."
        in text_of(page)
    )
    assert '<span class="pill poor">paused' in page
    assert 'href="/base/dags/tidemark_events"' in page
    assert "<dt>forecast</dt><dd>paused<" in page
    others = TestClient(memory_web(load, SomeRights(paused=["tidemark_idle"])))
    page = others.get("/pipelines/events").text
    assert "<dt>forecast</dt><dd>with the next run<" in page
    assert "is paused:" not in page
    assert ">paused<" not in page


def test_the_overview_marks_the_pipelines_of_paused_dags(lake: FileLake, tmp_path: Path) -> None:
    """A pipeline without lag has its usual forecast."""
    lake.produce(4, 0)
    viewer = SomeRights(paused=["tidemark_events", "tidemark_idle"])
    client = memory_console(tmp_path, lake, viewer)
    wait_until(lambda: ">reading<" not in client.get("/").text, what="statuses")
    page = client.get("/").text
    events, idle = (row for row in cells(page) if row)
    assert [("paused" in row[0], row[5] == "paused") for row in (events, idle)] == [
        (True, True),
        (True, False),
    ]
    both = (
        "DAGs tidemark_events , tidemark_idle are paused: no scheduled run lands records of their"
    )
    assert f"{both} pipelines." in text_of(page)
    one = memory_console(tmp_path, lake, replace(viewer, paused=["tidemark_idle"])).get("/").text
    assert (
        "DAG tidemark_idle is paused: no scheduled run lands records of its pipelines."
        in text_of(one)
    )


@pytest.mark.parametrize(
    ("state", "colour"), [("failed", "bad"), ("success", "good"), ("running", "quiet-pill")]
)
def test_a_pipeline_has_the_last_run_of_its_dag(
    lake: FileLake, tmp_path: Path, state: str, colour: str
) -> None:
    """A failed run that recorded no plan is nowhere else on the page."""
    ended = datetime.now(UTC) - timedelta(hours=2)
    run = LastDagRun(run_id="manual__a/b", state=state, changed_at=ended)
    client = memory_console(tmp_path, lake, SomeRights(last_run=run))
    page = client.get("/pipelines/events").text
    assert f"Last run of DAG tidemark_events: manual__a/b {state} 2 h ago" in text_of(page)
    assert f'<span class="pill {colour}">{state}' in page
    (link,) = re.findall('href="(/dags/[^"]+)"', page)
    assert client.get(link).text.count("Run manual__a/b") == 2
    assert "Last run" not in memory_console(tmp_path, lake).get("/pipelines/events").text


# -- errors of parts -------------------------------------------------------------------------------


def test_a_damaged_control_table_leaves_the_last_status_on_the_page(
    lake: FileLake, tmp_path: Path
) -> None:
    client = memory_console(tmp_path, lake)
    assert "<dt>records landed</dt><dd>9</dd>" in client.get("/pipelines/events").text
    log = Path(memory_app(tmp_path, lake)().layout.control_table) / "_delta_log"
    for file in log.iterdir():
        file.unlink()
    (log / f"{7:020}.json").write_text("{}\n")
    page = client.get("/pipelines/events")
    assert page.status_code == 200
    assert "<dt>records landed</dt><dd>9</dd>" in page.text
    assert "DeltaLogDamaged" in page.text


def test_a_broken_suite_hides_values_and_leaves_the_rest_of_the_pages(
    lake: FileLake, tmp_path: Path
) -> None:
    spec = tmp_path / "pipelines" / "events.yaml"
    suites = tmp_path / "include" / "expectations"
    suites.mkdir(parents=True)
    (suites / "levels.json").write_text('{"name": "levels", "expectations": []}')
    spec.write_text(spec.read_text() + "quality: {suite: levels}\n")
    (first,) = REPORT.results
    key = replace(first, check="records", observed="12.3 (key b'alice')", value=12.3)
    value = replace(
        first, check="expect_column_max", column="value", observed="alice", passed=False
    )
    checked = replace(REPORT, pipeline="events", plan_sequence=3, results=(key, value))
    load = memory_app(tmp_path, lake, project=tmp_path)
    load().pipeline("events").check_results.append(checked)
    client = memory_console(tmp_path, lake, project=tmp_path)
    pages = ("/pipelines/events/plans/3", "/pipelines/events/quality")
    for path in pages:
        assert "alice" in client.get(path).text
    (suites / "levels.json").write_text("{broken")
    for path in pages:
        page = client.get(path)
        assert page.status_code == 200
        assert "SpecError" in page.text
        assert "alice" not in page.text
        assert "(hidden)" in page.text


def test_a_typed_table_has_no_pages(tmp_path: Path) -> None:
    """It has no plans. The pages of its pipeline show the rest."""
    typed = home_typed_lake(tmp_path)
    typed.land_values([b"one"])
    typed.run()
    for page in ("plans", "plans/1", "records"):
        shown = console_of(tmp_path).get(f"/pipelines/events@typed/{page}").text
        assert "InvalidReference" in shown

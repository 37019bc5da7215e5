"""Pages of the console over a real topic: coverage with zoom, and the preview of backfills."""

from __future__ import annotations

import html
import json
import re
import shlex
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from starlette.testclient import TestClient

from tests.support.commands import Command
from tests.support.consoles import Admits, SomeRights, app_of, console_of
from tests.support.topics import delete_records, make_topic
from tests.support.transactions import produce_values
from tests.support.waiting import wait_until
from tidemark.console.server import build_app
from tidemark.local.broker import BrokerStatus

pytestmark = pytest.mark.broker


@pytest.fixture
def topic(broker: BrokerStatus, admin: AdminClient, tmp_path: Path) -> str:
    """A topic of two partitions that pipeline `tides` reads from its start."""
    topic = f"console-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic, partitions=2)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "tides.yaml").write_text(
        f'name: tides\ntopic: {topic}\nschedule: "@daily"\nstart: earliest\n'
    )
    return topic


def bars(page: str) -> list[list[tuple[str, int]]]:
    """Return the state and width of each run of cells, by bar."""
    found = []
    for svg in re.findall(r'<svg class="coverage".*?</svg>', page, re.DOTALL):
        cells = re.findall(r'width="(\d+)" height="1" class="(state-[a-z-]+|none)"', svg)
        found.append([(state, int(width)) for width, state in cells])
    return found


def test_coverage_shows_one_lost_offset_and_zooms_to_it(
    broker: BrokerStatus, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    app = app_of(tmp_path, broker.bootstrap)()
    app.pipeline("tides").plan("test")
    produce_values(broker.bootstrap, topic, 1000)
    delete_records(admin, topic, before=1)
    client = console_of(tmp_path, broker.bootstrap)
    page = client.get("/pipelines/tides").text
    assert bars(page) == [[("state-lost", 1), ("state-unread", 239)]]
    assert "no offsets" in page
    assert "LostRange" in page
    zoomed = client.get("/pipelines/tides?partition=0&start=0&end=4").text
    assert bars(zoomed) == [[("state-lost", 1), ("state-unread", 3)]]
    windows = re.findall(r'href="(/pipelines/tides\?partition=0&amp;start=\d+&amp;end=\d+)"', page)
    assert len(windows) == 12
    inner = client.get(html.unescape(windows[0])).text
    assert bars(inner)[0][0][0] == "state-lost"
    assert client.get("/pipelines/tides?partition=0&start=5000&end=2").status_code == 200
    weekly = client.get("/pipelines/tides?partition=0&start=0&end=4&period=week").text
    zooms = re.findall(r'href="(/pipelines/tides\?partition=0&amp;start=\d+[^"]*)"', weekly)
    assert [link for link in zooms if "period=" not in link] == []


def test_the_preview_of_a_backfill_writes_nothing_and_has_command_and_parameters(
    broker: BrokerStatus, topic: str, tmp_path: Path, tidemark: Command
) -> None:
    app = app_of(tmp_path, broker.bootstrap)()
    app.pipeline("tides").plan("test")
    produce_values(broker.bootstrap, topic, 10)
    before = app.control.ledger("tides")
    web = build_app(app_of(tmp_path, broker.bootstrap), Admits(SomeRights()), airflow="/air")
    client = TestClient(web)
    page = client.get("/pipelines/tides/backfill?offsets=0:2-5, 0:7-8&chunk=2&reason=it's").text
    text = html.unescape(page)
    assert "4 offsets to land in 2 chunks" in text
    assert "--offsets 0:2-5 --offsets 0:7-8 --chunk 2 --reason 'it'\"'\"'s'" in text
    assert 'data-trigger="/air/api/v2/dags/tidemark_backfill/dagRuns"' in page
    conf = re.search(r'data-conf="([^"]*)"', page)
    assert conf
    given = json.loads(html.unescape(conf[1]))
    assert (given["pipeline"], given["offsets"], given["chunk"]) == ("tides", "0:2-5, 0:7-8", 2)
    command = text.rpartition("<pre>")[2].partition("</pre>")[0]
    *_, row, effect = tidemark(*shlex.split(command)[1:], "--dry-run").out.splitlines()
    assert re.findall("<td[^>]*>(.*?)</td>", text) == re.split(" {2,}", row.strip())
    assert f"<p>{effect}</p>" in text
    assert app_of(tmp_path, broker.bootstrap)().control.ledger("tides") == before
    alone = console_of(tmp_path, broker.bootstrap)
    assert "data-trigger" not in alone.get("/pipelines/tides/backfill?retained=true").text
    for wrong in ("offsets=zz", "plan=x", "start=2026-01-01", "offsets=0:1-2&retained=true"):
        shown = client.get(f"/pipelines/tides/backfill?{wrong}")
        assert (shown.status_code, "InvalidSelection" in shown.text) == (200, True)


def test_progress_shows_the_chunks_of_a_recorded_backfill(
    broker: BrokerStatus, topic: str, tmp_path: Path
) -> None:
    pipeline = app_of(tmp_path, broker.bootstrap)().pipeline("tides")
    pipeline.plan("test")
    produce_values(broker.bootstrap, topic, 10)
    from tidemark.bronze.backfill.selection import select

    backfills = pipeline.backfills
    selection = select(offsets=["0:0-4"])
    preview = backfills.preview(selection, 2, readable_only=False, replaces=False)
    backfills.request(preview, "cli:ada:7", approved=False, reason=None)
    page = console_of(tmp_path, broker.bootstrap).get("/pipelines/tides/backfills").text
    assert "cli:ada:7" in page
    assert "landed: 0 of 2 chunks" in page


def test_topics_that_pipelines_should_read_and_that_do_not_exist_are_listed(
    broker: BrokerStatus, topic: str, tmp_path: Path
) -> None:
    spec = tmp_path / "pipelines" / "waves.yaml"
    spec.write_text('name: waves\ntopic: no-such-topic\nschedule: "@daily"\n')
    line = "Topic no-such-topic does not exist"
    assert line in console_of(tmp_path, broker.bootstrap).get("/cluster").text
    some = console_of(tmp_path, broker.bootstrap, SomeRights(pipelines=["tides"]))
    page = some.get("/cluster").text
    assert topic in page
    assert "no-such-topic" not in page


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the texts of the cells of the table below a title, by row, without its head."""
    body = page.partition(f">{heading}</")[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [
            html.unescape(re.sub("<[^>]*>", "", cell)).strip()
            for cell in re.findall(r"<td.*?</td>", row)
        ]
        for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    ]


def test_pages_of_kafka_have_brokers_watermarks_settings_and_the_pipelines_of_a_topic(
    broker: BrokerStatus, admin: AdminClient, topic: str, tmp_path: Path
) -> None:
    """S20: what Kafdrop shows."""
    produce_values(broker.bootstrap, topic, 7)
    delete_records(admin, topic, before=2)
    client = console_of(tmp_path, broker.bootstrap)

    def is_listed() -> bool:
        """Whether the broker knows the new topic and its watermarks."""
        rows = rows_of(client.get("/cluster").text, "Topics")
        return any(row[:3] == [topic, "2", "5"] for row in rows)

    wait_until(is_listed)
    page = client.get("/cluster").text
    (own,) = (row for row in rows_of(page, "Topics") if row[0] == topic)
    assert own == [topic, "2", "5", "0", "tides"]
    ((leader, *of_broker),) = rows_of(page, "Brokers")
    assert of_broker == [broker.bootstrap, "-", "controller"]
    assert broker.cluster_id in page

    pages: list[str] = []

    def has_watermarks() -> bool:
        """A page does not wait long for them."""
        pages.append(client.get(f"/cluster/kafka_default/topics/{topic}").text)
        return "-" not in rows_of(pages[-1], "Partitions")[0]

    wait_until(has_watermarks, 30, what="the watermarks")
    page = pages[-1]
    assert rows_of(page, "Partitions") == [
        ["0", "2", "7", "5", leader, leader, leader, "tides"],
        ["1", "0", "0", "0", leader, leader, leader, "tides"],
    ]
    records = re.findall('href="(/pipelines/tides/records[^"]*)"', page)
    assert [each.partition("&amp;topic_id")[0] for each in records] == [
        "/pipelines/tides/records?partition=0&amp;offset=2",
        "/pipelines/tides/records?partition=1&amp;offset=0",
    ]
    defaults = {name: value for name, value, _ in rows_of(page, "Kafka's defaults")}
    assert defaults["cleanup.policy"] == "delete"
    assert defaults["segment.bytes"] == "1073741824 (1 GiB)"
    assert "TopicMissing" in client.get("/cluster/kafka_default/topics/no-such-topic").text
    names = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics
    assert "no-such-topic" not in names

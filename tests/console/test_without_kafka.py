"""Pages keep the newest values while Kafka is unavailable, and never those of another topic."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from tests.console.test_pages import cells
from tests.ops.report.test_cluster import CLUSTER, PARTITION, FixedCluster
from tests.support.consoles import SomeRights
from tests.support.file_lake import FileLake, home_lake
from tests.support.memory import MemoryKafka
from tests.support.memory_consoles import MemoryApp, memory_app
from tests.support.page_text import text_of
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.console.guard import Viewer
from tidemark.console.home import Home
from tidemark.console.server import build_app
from tidemark.core.cluster import ClusterDescription, TopicDescription
from tidemark.core.errors import TidemarkError
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable, TopicMissing

DOWN = KafkaUnavailable(operation="describe", reason="no broker")
UNKNOWN = "the start and the end of the log are unknown"
TOPIC = "/cluster/kafka_default/topics/events"


@dataclass
class Broker(FixedCluster):
    """A log in memory and a cluster of some topics, which one error can replace.

    Attributes:
        kafka: The log.
        topics: Names of the topics of the cluster.
        error: Raised by every read; None while the broker answers.
        reads: Number of reads of watermarks.
    """

    kafka: MemoryKafka = field(default_factory=MemoryKafka)
    topics: Sequence[str] = ("events",)
    error: TidemarkError | None = None
    reads: int = 0

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        self.reads += 1
        self._check()
        return self.kafka.topic_watermarks(topic, isolation_level)

    def describe(self, topics: Sequence[str] | None = None) -> ClusterDescription:
        self._check()
        found = tuple(
            TopicDescription(name=name, topic_id=f"id of {name}", partitions=(PARTITION,))
            for name in self.topics
            if topics is None or name in topics
        )
        return replace(CLUSTER, topics=found)

    def with_offsets(self, topics: Collection[TopicDescription]) -> tuple[TopicDescription, ...]:
        self._check()
        return super().with_offsets(topics)

    def _check(self) -> None:
        if self.error:
            raise self.error

    def __getattr__(self, name: str) -> Any:
        self._check()
        return getattr(self.kafka, name)


@dataclass
class ChangingGuard:
    """Admits every request as the current viewer."""

    viewer: Viewer = field(default_factory=SomeRights)

    async def admit(self, request: Request) -> Viewer | Response:  # noqa: ARG002
        return self.viewer


@dataclass
class Console:
    """A console over a broker. Each page reads Kafka again.

    Attributes:
        home: The home.
        lake: Pipeline `events` with three landed plans.
        broker: The broker.
        environ: Variables that the console loads with each app.
    """

    home: Path
    lake: FileLake
    broker: Any
    guard: ChangingGuard = field(default_factory=ChangingGuard)
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = TestClient(build_app(self.load, self.guard))

    def load(self) -> MemoryApp:
        """Load the app."""
        app = replace(
            memory_app(self.home, self.lake)(), watermarks=self.broker, cluster_reader=self.broker
        )
        return replace(app, environ={**app.environ, **self.environ})

    def page(self, path: str) -> str:
        """Return the page at an address."""
        page = self.client.get(path)
        assert page.status_code == 200
        return page.text

    def rows(self, query: str = "") -> list[list[str]]:
        """Return the rows of the coverage of `events`, without values of the status."""
        page = self.page(f"/pipelines/events{query}").partition("Offsets by state")[2]
        return [row[:4] + row[7:] for row in cells(page.partition("</details>")[0]) if row]


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setattr("tidemark.console.home.FRESH_S", -1.0)
    monkeypatch.setattr("tidemark.console.home.RELOAD_S", -1.0)
    lake = home_lake(tmp_path)
    return Console(tmp_path, lake, Broker(kafka=lake.kafka))


# -- coverage ------------------------------------------------------------------------------------


def test_coverage_keeps_the_newest_watermarks_during_an_outage(console: Console) -> None:
    console.lake.produce(4, 0)
    console.lake.kafka.delete_records("events", 0, 2)
    # Partition, low watermark, committed offset, end, unread, landed.
    known = [["0", "2", "9", "13", "4", "9"], ["1", "0", "0", "0", "0", "0"]]
    assert console.rows() == known
    assert '<div class="bars">' in console.page("/pipelines/events")
    console.broker.error = DOWN
    console.lake.produce(100, 0)
    assert console.rows() == known
    page = console.page("/pipelines/events")
    assert '<div class="bars stale">' in page
    assert UNKNOWN not in page
    note = r"Kafka could not be read\. The bars end where the log ended at \d{4}-[-\d: ]+ UTC"
    assert re.search(note, text_of(page))
    assert "KafkaUnavailable: Kafka is unavailable: describe failed" in text_of(page)
    zoom = "?partition=0&start=8"
    assert '<div class="bars stale">' in console.page(f"/pipelines/events{zoom}")
    assert console.rows(zoom) == [["0", "2", "9", "13", "4", "1"]]
    console.broker.error = None
    assert console.rows()[0] == ["0", "2", "9", "113", "104", "9"]
    assert '<div class="bars">' in console.page("/pipelines/events")


def test_plans_that_land_during_an_outage_move_the_known_end(console: Console) -> None:
    console.lake.produce(4, 0)
    console.rows()
    console.broker.error = DOWN
    console.lake.run(2)
    # The four unread offsets and the two later ones have landed.
    assert console.rows()[0] == ["0", "0", "15", "15", "15"]
    console.lake.plan(3)
    assert console.rows()[0] == ["0", "0", "15", "18", "3", "15"]
    assert console.rows()[1] == ["1", "0", "0", "0", "0", "0"]


def test_a_known_end_before_landed_offsets_stays_without_a_later_plan(console: Console) -> None:
    """A truncated log is not hidden."""
    console.lake.kafka.elect("events", 0, end=7)
    assert console.rows()[0][3] == "7"
    console.broker.error = DOWN
    assert console.rows()[0][3] == "7"


def test_watermarks_of_another_topic_or_incarnation_are_not_shown(console: Console) -> None:
    events, kafka = console.home / "pipelines" / "events.yaml", console.lake.kafka
    spec = events.read_text()

    def is_known() -> bool:
        return UNKNOWN not in text_of(console.page("/pipelines/events"))

    assert is_known()
    console.broker.error = DOWN
    assert is_known()
    events.write_text(spec.replace("topic: events", "topic: others"))
    assert not is_known()
    events.write_text(spec + "isolation_level: read_uncommitted\n")
    assert not is_known()
    events.write_text(spec)
    assert is_known()
    variable = connection_variable("kafka_default")
    console.environ[variable] = kafka_connection("127.0.0.1:2")
    assert not is_known()
    del console.environ[variable]
    assert is_known()
    kafka.create("events", 2, "id-2")
    assert is_known()
    console.lake.decisions.accept_recreation("ops", "recreated")
    assert not is_known()


@pytest.mark.slow
def test_a_status_of_another_topic_or_connection_is_not_shown(console: Console) -> None:
    events = console.home / "pipelines" / "events.yaml"
    spec, variable = events.read_text(), connection_variable("kafka_default")
    console.lake.produce(4, 0)

    def lags() -> list[str]:
        (row,) = (row for row in cells(console.page("/")) if row and row[0].startswith("events"))
        return [
            row[2],
            *re.findall("<dt>lag</dt><dd>(.*?)</dd>", console.page("/pipelines/events")),
        ]

    for text, connection in (
        (spec.replace("topic: events", "topic: others"), None),
        (spec + "isolation_level: read_uncommitted\n", None),
        (spec, kafka_connection("127.0.0.1:2")),
    ):
        assert lags() == ["4", "4"]
        console.broker.error = DOWN
        assert lags() == ["4", "4"]
        events.write_text(text)
        if connection:
            console.environ[variable] = connection
        assert lags() == ["-", "-"]
        console.broker.error = None
        events.write_text(spec)


def test_a_partition_that_started_during_an_outage_hides_the_known_watermarks(
    console: Console,
) -> None:
    console.rows()
    console.broker.error = DOWN
    console.lake.kafka.topics["events"][2] = replace(console.lake.kafka.topics["events"][1])
    console.lake.run(1, 2)
    page = console.page("/pipelines/events")
    assert UNKNOWN in text_of(page)
    assert "TopicChanged" not in page


@pytest.mark.parametrize(
    "error",
    [TopicMissing(topic="events"), KafkaRefused(operation="describe", reason="no", needed="x")],
)
def test_values_of_a_deleted_topic_or_a_refused_principal_are_not_kept(
    console: Console, error: TidemarkError
) -> None:
    pages = ("/pipelines/events", "/cluster", TOPIC)
    for path in pages:
        console.page(path)
    for console.broker.error in (error, DOWN):
        assert UNKNOWN in text_of(console.page("/pipelines/events"))
        assert "id of events" not in console.page("/cluster") + console.client.get(TOPIC).text
        assert console.client.get(TOPIC).status_code in (422, 503)


def test_requests_within_some_seconds_share_watermarks(tmp_path: Path) -> None:
    lake, now = home_lake(tmp_path), 0.0
    broker: Any = Broker(kafka=lake.kafka)
    load = memory_app(tmp_path, lake, watermarks=broker)
    home = Home(load, clock=lambda: now)
    for seconds, reads in ((0.0, 1), (5.0, 1), (5.1, 2)):
        now = seconds
        assert home.watermarks(home.app.pipeline("events")).value
        assert broker.reads == reads


def test_the_link_of_a_zoomed_page_to_its_records_is_permanent(console: Console) -> None:
    """It has the incarnation of the plans, also without Kafka; before the first plan Kafka's."""
    lake = console.lake
    records = "/pipelines/events/records?partition=0&amp;offset=3&amp;topic_id=id-1"
    zoomed = "/pipelines/events?partition=0&start=3"
    assert records in console.page(zoomed)
    console.broker.error = DOWN
    assert records in Console(console.home, lake, console.broker).page(zoomed)
    console.broker.error = None
    lake.kafka.create("idle", 1, "id-7")
    lake.kafka.produce("idle", 0, 5)
    idle = console.page("/pipelines/idle?partition=0&start=3")
    assert records.replace("events", "idle").replace("id-1", "id-7") in idle


# -- cluster and topics --------------------------------------------------------------------------


def test_the_pages_of_kafka_keep_the_newest_values_during_an_outage(console: Console) -> None:
    fresh = {path: console.page(path) for path in ("/cluster", TOPIC)}
    console.broker.error = DOWN
    for path, before in fresh.items():
        page = console.page(path)
        assert "KafkaUnavailable" in page
        assert re.search(r"As of \d{4}-[-\d: ]+ UTC, the newest values that could be", page)
        assert [row for row in cells(page) if row] == [row for row in cells(before) if row]
        assert page.count('class="scroll stale"') == before.count('class="scroll"') > 0
        assert "stale" not in before
    console.broker.error = None
    assert "stale" not in console.page("/cluster") + console.page(TOPIC)


def test_pages_of_kafka_show_the_error_if_no_value_was_read_before(console: Console) -> None:
    console.broker.error = DOWN
    page = console.page("/cluster")
    assert "KafkaUnavailable" in page
    assert "<h2>Topics</h2>" not in page
    topic = console.client.get(TOPIC)
    assert (topic.status_code, "KafkaUnavailable" in topic.text) == (503, True)


def test_kept_pages_of_kafka_have_the_rights_of_each_viewer(console: Console) -> None:
    link = 'href="/pipelines/events"'
    for path in ("/cluster", TOPIC):
        assert link in console.page(path)
    console.broker.error = DOWN
    console.guard.viewer = SomeRights(pipelines=["idle"])
    for path in ("/cluster", TOPIC):
        page = console.page(path)
        assert "stale" in page
        assert link not in page
    assert "Topic idle does not exist" in console.page("/cluster")
    console.guard.viewer = SomeRights(pipelines=["events"])
    assert "Topic idle does not exist" not in console.page("/cluster")
    console.guard.viewer = SomeRights(payloads=False)
    assert "id of events" not in console.page("/cluster")
    assert console.client.get(TOPIC).status_code == 404
    assert console.client.get("/cluster?connection=kafka_default").status_code == 404


def test_kept_values_are_not_shown_after_a_change_of_connection_or_specs(console: Console) -> None:
    spec = console.home / "pipelines" / "events.yaml"
    before = spec.read_text()
    for path in ("/cluster", TOPIC):
        console.page(path)
    console.broker.error = DOWN
    spec.write_text(before.replace("topic: events", "topic: others"))
    assert "stale" not in console.page("/cluster")
    assert console.client.get(TOPIC).status_code == 503
    spec.write_text(before)
    assert "stale" in console.page("/cluster")
    console.environ[connection_variable("kafka_default")] = json.dumps(
        {"extra": {"bootstrap.servers": "127.0.0.1:1", "sasl.username": "other"}}
    )
    assert "stale" not in console.page("/cluster")
    assert console.client.get(TOPIC).status_code == 503


# -- many topics ---------------------------------------------------------------------------------


def topics_of(page: str) -> list[str]:
    """Return the topics of the page of a cluster."""
    return re.findall(r'href="/cluster/kafka_default/topics/([^"]+)"', page)


def test_a_list_of_topics_has_a_filter_and_the_number_of_the_others(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.console.home.TOPICS", 3)
    console.broker.topics = [f"prices-{number}" for number in range(5)] + ["events"]
    page = console.page("/cluster")
    assert topics_of(page) == ["prices-0", "prices-1", "prices-2"]
    assert console.broker.measured == topics_of(page)
    assert "3 more topics." in text_of(page)
    assert "Topic idle does not exist" in page
    found = console.page("/cluster?connection=kafka_default&pattern=*s-[34]")
    assert topics_of(found) == ["prices-3", "prices-4"]
    assert 'name="pattern" value="*s-[34]"' in found
    assert "more topic" not in found
    assert "Topic idle does not exist" not in found
    assert topics_of(console.page("/cluster?pattern=")) == topics_of(page)
    nothing = console.page("/cluster?pattern=Events")
    assert (topics_of(nothing), "No topic matches" in nothing) == ([], True)


def test_a_topic_pattern_is_escaped_and_limited_in_length(console: Console) -> None:
    page = console.page("/cluster?pattern=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert console.client.get(f"/cluster?pattern={'x' * 250}").status_code == 400

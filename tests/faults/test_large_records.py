"""Tests that records which decompress to gigabytes do not end the runs of other pipelines."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.faults.tally import TableJudge
from tests.faults.test_connect_server import SeparateServer
from tests.support.crashes import SPEC, Site
from tests.support.topics import make_topic
from tests.support.transactions import Record, append, produce_values
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.local.producer import producer_settings
from tidemark.spec.layout import Layout

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults]

MB = 1_000_000


def produce_zeros(bootstrap: str, topic: str, count: int, size: int) -> None:
    """Append records that compress to a thousandth of their size, each in a batch of its own."""
    settings = {
        **producer_settings({"bootstrap.servers": bootstrap}),
        "message.max.bytes": 1_000 * MB,
        "queue.buffering.max.kbytes": 2_000_000,
        "compression.type": "gzip",
    }
    producer = Producer(settings)
    for _ in range(count):
        append(producer, topic, [Record(value=bytes(size), partition=0)])


@pytest.fixture
def site(
    broker: BrokerStatus, spark: SparkSession, layout: Layout, tmp_path: Path
) -> Iterator[Site]:
    """Return pipelines `events` and `other` of a home with a server, whose heap is 1 GB."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topic, other = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("large", "other"))
    for name in (topic, other):
        make_topic(admin, broker.bootstrap, name)
    made = Site(home=tmp_path, bootstrap=broker.bootstrap, topic=topic, session=spark)
    for name, of in (("events", topic), ("other", other)):
        text = SPEC.format(name=name, topic=of, start="earliest")
        # A server refuses settings of an application.
        (made.specs / f"{name}.yaml").write_text(text.partition("spark:")[0])
    produce_values(broker.bootstrap, other, 5)
    server = SeparateServer(layout, tmp_path)
    try:
        server.start()
        yield made
    finally:
        server.stop()


def test_records_that_exceed_the_heap_together_land(site: Site, table_judge: TableJudge) -> None:
    """A batch of a record is small, so that a poll of Kafka's client returns all records."""
    produce_zeros(site.bootstrap, site.topic, 12, 50 * MB)
    assert "reading one record at a time" in site.run(site.tidemark("ingest", "events")).printed
    site.run(site.tidemark("ingest", "other"))
    assert table_judge.check(site.lake).records == 12


def test_a_record_that_exceeds_the_heap_fails_its_plan_alone(site: Site) -> None:
    """The error names the offsets, and the server stays available."""
    produce_zeros(site.bootstrap, site.topic, 2, 600 * MB)
    beside = 0
    with site.started(site.tidemark("ingest", "events")) as failing:
        while failing.process.poll() is None:
            site.run(site.tidemark("ingest", "other"))
            produce_values(site.bootstrap, site.app.spec("other").topic, 5)
            beside += 1
        ended = failing.wait()
    assert (ended.code, beside > 0) == (ExitCode.TRANSIENT, True), ended.printed
    assert "OutOfMemoryError" in ended.printed
    assert "(partition 0, offsets [0, 2)), one record at a time" in ended.printed
    site.run(site.tidemark("ingest", "other"))
    assert site.lake.rows() == []

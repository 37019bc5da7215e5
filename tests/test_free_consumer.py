"""Tests that a whole run leaves nothing in Kafka, on a separate cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.kafka_judge import group_names, read_all
from tests.support.lake import Lake
from tests.support.plans import make_spec
from tidemark.local.broker import Broker, BrokerConfig, BrokerStatus
from tidemark.local.producer import produce
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def unused_broker(layout: Layout, tmp_path: Path) -> Iterator[BrokerStatus]:
    """Start a broker without other clients, because even a lookup of a group leaves a trace."""
    config = BrokerConfig(home=tmp_path / "broker", jars=layout.kafka_jars, heap_mb=256)
    embedded = Broker(config)
    try:
        yield embedded.start()
    finally:
        embedded.stop()


def topics(bootstrap: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return set(admin.list_topics(timeout=30).topics)


def test_s1_a_run_leaves_no_group_and_no_offset(
    unused_broker: BrokerStatus, spark: SparkSession, tmp_path: Path
) -> None:
    """I6, S18, S28. The first bootstrap server is dead, and no ZooKeeper runs."""
    bootstrap = unused_broker.bootstrap
    client = {"bootstrap.servers": bootstrap}
    (dead,) = free_ports("127.0.0.1", 1)
    lake = Lake(
        session=spark,
        root=tmp_path / "lake",
        connection={"bootstrap.servers": f"127.0.0.1:{dead},{bootstrap}", "group.id": "unwanted"},
        spec=make_spec(topic="streams-intro"),
    )
    for run in ("first", "second"):
        produce(client, "streams-intro", records=5)
        assert lake.run(run).landing.records == 5
        status = lake.status()
        assert (status.lag, status.problem) == (0, None)
    assert lake.planner.plan("third").plan is None

    assert group_names(bootstrap) == set()
    # librdkafka requests a coordinator although no group exists. The broker then creates its
    # topic of offsets.
    made = topics(bootstrap) - {"streams-intro"}
    assert made <= {"__consumer_offsets"}
    for name in made:
        assert read_all(bootstrap, name) == []
    records = read_all(bootstrap, "streams-intro")
    assert len(records) == 10
    assert lake.delivered_rows() == records


def test_s28_no_jar_and_no_code_uses_zookeeper(layout: Layout) -> None:
    assert [jar.name for jar in layout.kafka_jars.iterdir() if "zookeeper" in jar.name] == []
    assert [jar.name for jar in layout.spark_jars.iterdir() if "zookeeper" in jar.name] == []
    sources = (layout.project / "include").rglob("*.py")
    assert [file for file in sources if "zookeeper" in file.read_text("utf-8").lower()] == []

"""No client creates a topic, even on a broker that creates topics on request (S15)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemark.core.cluster import PartitionDescription, TopicDescription
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.watermarks import IsolationLevel
from tidemark.kafka.cluster import KafkaClusterReader
from tidemark.kafka.errors import KafkaUnavailable, TopicMissing
from tidemark.kafka.groups import KafkaGroupOffsets
from tidemark.kafka.options import client_config, spark_options
from tidemark.kafka.reader import KafkaLogReader
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.local.broker import Broker, BrokerConfig
from tidemark.spec.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker
MISSING = "missing"
READ = IsolationLevel.READ_COMMITTED
ONE = {0: SpanSet((Span(0, 1),))}
DELETED_MEANWHILE = TopicDescription(
    name=MISSING,
    partitions=(PartitionDescription(number=0, leader=1, replicas=(1,), isr=(1,)),),
)
"""The description of a topic that is deleted before its offsets are read."""


@pytest.fixture(scope="module")
def config(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    broker = Broker(
        BrokerConfig(
            home=tmp_path_factory.mktemp("broker"),
            jars=layout.kafka_jars,
            heap_mb=256,
            properties={"auto.create.topics.enable": "true"},
        )
    )
    try:
        yield {"bootstrap.servers": broker.start().bootstrap}
    finally:
        broker.stop()


def topics(config: dict[str, str]) -> set[str]:
    names = AdminClient({**config, "log_level": 0}).list_topics(timeout=30).topics
    return {name for name in names if not name.startswith("__")}


@pytest.mark.parametrize(
    "request_topic",
    [
        pytest.param(
            lambda config: KafkaWatermarkReader(config).topic_watermarks(MISSING, READ),
            id="watermarks",
        ),
        pytest.param(
            lambda config: KafkaWatermarkReader(config).retention_time(MISSING), id="settings"
        ),
        pytest.param(
            lambda config: list(KafkaLogReader(config, 2.0).read(MISSING, READ, ONE)), id="records"
        ),
        pytest.param(
            lambda config: KafkaGroupOffsets(config).committed("group", MISSING, [0]), id="group"
        ),
        pytest.param(lambda config: KafkaClusterReader(config).describe([MISSING]), id="describe"),
        pytest.param(
            lambda config: KafkaClusterReader(config).with_offsets([DELETED_MEANWHILE]),
            id="offsets",
        ),
        pytest.param(
            lambda config: KafkaClusterReader(config).topic_settings(MISSING),
            id="described settings",
        ),
    ],
)
def test_s15_a_request_for_a_missing_topic_does_not_create_it(
    config: dict[str, str], request_topic: Callable[[dict[str, str]], object]
) -> None:
    """Covers each request of librdkafka that contains a topic name."""
    with suppress(TopicMissing, KafkaUnavailable):
        request_topic(config)
    assert MISSING not in topics(config)


def test_the_broker_of_these_tests_creates_a_topic_on_request(config: dict[str, str]) -> None:
    consumer = Consumer({**config, "group.id": "any", "allow.auto.create.topics": True})
    try:
        deadline = time.monotonic() + 30
        while "requested" not in topics(config):
            consumer.list_topics("requested", timeout=30)
            assert time.monotonic() < deadline
    finally:
        consumer.close()


@pytest.mark.spark
def test_s15_a_topic_deleted_while_spark_reads_it_stays_deleted(
    config: dict[str, str], spark: SparkSession
) -> None:
    """By default, the Java consumer makes the broker create the topic again."""
    from py4j.protocol import Py4JJavaError

    topic = "deleted"
    admin = AdminClient({**config, "log_level": 0})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(timeout=30)
    producer = Producer({**config, "log_level": 0})
    producer.produce(topic, b"record")
    assert producer.flush(30) == 0
    read = (
        spark.read.format("kafka")
        .options(**spark_options(client_config("lake", config)))
        .option("kafkaConsumer.pollTimeoutMs", "3000")
        .option("kafka.request.timeout.ms", "3000")
        .option("kafka.default.api.timeout.ms", "3000")
        .option("assign", json.dumps({topic: [0]}))
        .option("startingOffsets", json.dumps({topic: {"0": 0}}))
        .option("endingOffsets", json.dumps({topic: {"0": 1}}))
        .load()
    )
    planned = read._jdf.queryExecution().toRdd()
    assert planned.getNumPartitions() == 1
    admin.delete_topics([topic])[topic].result(timeout=30)
    deadline = time.monotonic() + 30
    while topic in topics(config):
        assert time.monotonic() < deadline
    with pytest.raises(Py4JJavaError, match=topic):
        planned.count()
    assert topic not in topics(config)

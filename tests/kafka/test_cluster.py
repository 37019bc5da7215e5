"""Descriptions of a real cluster, compared with Kafka's own tool and a consumer of librdkafka."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import TopicFactory
from tests.support.kafka_judge import log_ranges
from tests.support.topics import delete_records
from tests.support.transactions import produce_values
from tidemark.core.cluster import BrokerDescription
from tidemark.kafka.cluster import PARTITIONS_AT_ONCE, KafkaClusterReader
from tidemark.kafka.errors import KafkaUnavailable, TopicMissing
from tidemark.local.broker import BrokerStatus
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout


@pytest.fixture
def reader(broker: BrokerStatus) -> KafkaClusterReader:
    return KafkaClusterReader({"bootstrap.servers": broker.bootstrap})


def kafkas_description(layout: Layout, bootstrap: str, topic: str) -> str:
    """Return the output of `kafka-topics --describe`."""
    done = subprocess.run(
        [
            *("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{layout.kafka_jars}/*"),
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", bootstrap, "--describe", "--topic", topic),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=180,
    )
    return done.stdout


@pytest.mark.broker
def test_s20_partitions_replicas_and_settings_are_those_of_kafkas_own_tool(
    reader: KafkaClusterReader, broker: BrokerStatus, topic: TopicFactory, layout: Layout
) -> None:
    name = topic(partitions=2, config={"retention.ms": "3600000", "cleanup.policy": "compact"})
    text = kafkas_description(layout, broker.bootstrap, name)
    (described,) = reader.describe([name]).topics
    assert described.topic_id == re.findall(r"TopicId: (\S+)", text)[0]
    pattern = r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\d+)\s+Isr: (\d+)"
    shown_places = re.findall(pattern, text)
    assert [
        (each.number, each.leader, each.replicas, each.isr) for each in described.partitions
    ] == [(int(n), int(leader), (int(r),), (int(i),)) for n, leader, r, i in shown_places]
    assert len(shown_places) == 2
    settings = {each.name: each for each in reader.topic_settings(name).values}
    (shown,) = re.findall(r"Configs: (\S+)", text)
    changed = dict(each.split("=") for each in shown.split(","))
    assert changed["retention.ms"] == "3600000"
    assert changed == {name: settings[name].value for name in changed}
    assert settings["cleanup.policy"].source == "dynamic topic config"
    assert settings["segment.ms"].is_default
    assert not any(settings[name].is_default for name in ("cleanup.policy", "retention.ms"))


@pytest.mark.broker
@pytest.mark.parametrize("at_once", [PARTITIONS_AT_ONCE, 2])
def test_s20_first_and_end_offsets_are_those_that_a_consumer_finds(
    reader: KafkaClusterReader,
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    """One call for several topics, even with more partitions than one request has.

    Topics that were not requested have no offsets.
    """
    monkeypatch.setattr("tidemark.kafka.cluster.PARTITIONS_AT_ONCE", at_once)
    first, second, third = topic(partitions=3), topic(), topic()
    produce_values(broker.bootstrap, first, 5, partition=1)
    produce_values(broker.bootstrap, second, 4)
    delete_records(admin, second, before=3)
    cluster = reader.describe()
    found = {each.name: each for each in cluster.topics}
    measured = reader.with_offsets([found[first], found[second]])
    for each in measured:
        assert each.problem is None
        assert {p.number: (p.first, p.end) for p in each.partitions} == log_ranges(
            broker.bootstrap, each.name
        )
    assert [each.records for each in measured] == [5, 1]
    assert found[third].records is None


@pytest.mark.broker
def test_s20_the_cluster_has_its_id_its_brokers_and_all_topics(
    reader: KafkaClusterReader, broker: BrokerStatus, topic: TopicFactory, admin: AdminClient
) -> None:
    name = topic()
    cluster = reader.describe()
    host, port = broker.bootstrap.split(":")
    assert cluster.cluster_id == broker.cluster_id
    assert cluster.controller == 1
    assert cluster.brokers == (BrokerDescription(id=1, host=host, port=int(port), rack=None),)
    names = [each.name for each in cluster.topics]
    assert names == sorted(names)
    assert name in names
    internal = {each.name for each in cluster.topics if each.internal}
    assert internal == {each for each in names if each.startswith("__")}


@pytest.mark.broker
def test_a_topic_that_is_deleted_after_its_description_spoils_no_other_topic(
    reader: KafkaClusterReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 2)
    (whole,) = reader.describe([name]).topics
    gone = replace(whole, name="no-such-topic")
    missing, measured = reader.with_offsets([gone, whole])
    assert isinstance(missing.problem, TopicMissing)
    assert (missing.records, measured.records, measured.problem) == (None, 2, None)


@pytest.mark.broker
def test_the_error_of_a_missing_topic_suggests_similar_names(
    reader: KafkaClusterReader, topic: TopicFactory
) -> None:
    name = topic()
    with pytest.raises(TopicMissing, match=f"Did you mean {name}") as caught:
        reader.describe([f"{name}x"])
    assert name in caught.value.similar


@pytest.mark.broker
@pytest.mark.parametrize("name", ["", "not a name", "0" * 300])
def test_a_topic_with_an_impossible_name_is_missing(reader: KafkaClusterReader, name: str) -> None:
    with pytest.raises(TopicMissing):
        reader.describe([name])


@pytest.mark.broker
def test_settings_of_a_missing_topic_or_broker_have_the_reason(reader: KafkaClusterReader) -> None:
    found = reader.topic_settings("no-such-topic")
    assert (found.values, type(found.problem)) == ((), TopicMissing)
    assert reader.broker_settings(1).changed


def test_an_unreachable_cluster_is_a_transient_error_within_the_timeout() -> None:
    (dead,) = free_ports("127.0.0.1", 1)
    reader = KafkaClusterReader({"bootstrap.servers": f"127.0.0.1:{dead}"}, timeout_seconds=0.2)
    with pytest.raises(KafkaUnavailable, match="describe_cluster of the cluster"):
        reader.describe()
    assert isinstance(reader.topic_settings("events").problem, KafkaUnavailable)

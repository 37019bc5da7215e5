"""Watermarks and topic ids of a real broker."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.conftest import TopicFactory
from tests.support.transactions import (
    Record,
    open_transaction,
    produce_aborted,
    produce_records,
    produce_values,
    wait_until_stable,
)
from tidemark.core.watermarks import IsolationLevel, Watermarks
from tidemark.kafka import admin as admin_requests
from tidemark.kafka.cluster import KafkaClusterReader
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable, NoTopicId, TopicMissing
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.local.broker import BrokerStatus
from tidemark.spark.sockets import free_ports

pytestmark = pytest.mark.broker

COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


@pytest.fixture
def reader(broker: BrokerStatus) -> KafkaWatermarkReader:
    return KafkaWatermarkReader({"bootstrap.servers": broker.bootstrap})


def test_watermarks_of_all_partitions_and_the_ids_are_returned(
    reader: KafkaWatermarkReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic(partitions=3)
    produce_values(broker.bootstrap, name, 5, partition=1)
    watermarks = reader.topic_watermarks(name, COMMITTED)
    assert (watermarks.topic, watermarks.isolation_level) == (name, COMMITTED)
    assert watermarks.cluster_id == broker.cluster_id
    assert watermarks.partitions == {
        0: Watermarks(low=0, end=0, leader_epoch=0),
        1: Watermarks(low=0, end=5, leader_epoch=0),
        2: Watermarks(low=0, end=0, leader_epoch=0),
    }


def test_s5_topic_ids_are_spelled_as_in_kafkas_own_files(
    reader: KafkaWatermarkReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Two of the 64 characters in librdkafka's alphabet differ."""
    for _ in range(6):
        name = topic()
        # Kafka writes the file before the first record, otherwise some time after the creation.
        produce_values(broker.bootstrap, name, 1)
        file = broker.home / "node-1" / "data" / f"{name}-0" / "partition.metadata"
        (spelled,) = (line for line in file.read_text().splitlines() if "topic_id" in line)
        assert reader.topic_watermarks(name, COMMITTED).topic_id == spelled.split(":")[1].strip()


def test_s7_the_low_watermark_follows_deletion(
    reader: KafkaWatermarkReader, broker: BrokerStatus, topic: TopicFactory, admin: AdminClient
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 5)
    for answer in admin.delete_records([TopicPartition(name, 0, 3)]).values():
        answer.result(timeout=30)
    assert reader.topic_watermarks(name, COMMITTED).partitions == {
        0: Watermarks(low=3, end=5, leader_epoch=0)
    }


def test_s8_the_log_end_depends_on_the_isolation_level(
    reader: KafkaWatermarkReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 2)
    with open_transaction(broker.bootstrap, name, [Record(), Record()]) as producer:
        produce_values(broker.bootstrap, name, 1)
        assert reader.topic_watermarks(name, COMMITTED).partitions == {
            0: Watermarks(low=0, end=2, leader_epoch=0)
        }
        assert reader.topic_watermarks(name, UNCOMMITTED).partitions == {
            0: Watermarks(low=0, end=5, leader_epoch=0)
        }
        producer.commit_transaction(30)
    wait_until_stable(broker.bootstrap, name)
    assert reader.topic_watermarks(name, COMMITTED).partitions == {
        0: Watermarks(low=0, end=6, leader_epoch=0)
    }


def test_s6_end_offsets_count_markers_and_aborted_records(
    reader: KafkaWatermarkReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    produce_aborted(broker.bootstrap, name, [Record()])
    assert reader.topic_watermarks(name, COMMITTED).partitions == {
        0: Watermarks(low=0, end=2, leader_epoch=0)
    }


def test_s5_a_recreated_topic_has_another_id(
    reader: KafkaWatermarkReader, topic: TopicFactory, admin: AdminClient
) -> None:
    first, second = topic(partitions=2), topic(partitions=2)
    ids = [reader.topic_watermarks(name, COMMITTED).topic_id for name in (first, second)]
    assert len(set(ids)) == 2
    assert reader.topic_watermarks(first, COMMITTED).topic_id == ids[0]


def test_s5_brokers_that_return_no_topic_id_raise_an_error(
    reader: KafkaWatermarkReader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old broker's answer has zeros in place of the id; here they are the id of a topic."""
    name = topic()
    topic_id = reader.topic_watermarks(name, COMMITTED).topic_id
    monkeypatch.setattr(admin_requests, "_NO_TOPIC_ID", {topic_id})
    with pytest.raises(NoTopicId, match=name):
        reader.topic_watermarks(name, COMMITTED)


def test_s9_offsets_at_a_moment_are_exact_to_the_millisecond(
    reader: KafkaWatermarkReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """A partition without a later record has its log end offset."""
    name = topic(partitions=2, config={"retention.ms": "-1"})
    base = 1_767_225_600_000
    stamped = [Record(timestamp_ms=base + ms) for ms in (0, 1, 2, 5)]
    produce_records(broker.bootstrap, name, stamped)
    moment = datetime.fromtimestamp(base / 1000, UTC)
    found = {
        delta: reader.offsets_at(name, [0, 1], moment + delta)[0]
        for delta in (
            timedelta(milliseconds=-1),
            timedelta(0),
            timedelta(microseconds=1),
            timedelta(milliseconds=1),
            timedelta(milliseconds=3),
            timedelta(milliseconds=5),
            timedelta(milliseconds=6),
        )
    }
    assert list(found.values()) == [0, 0, 1, 1, 3, 3, 4]
    assert reader.offsets_at(name, [1], moment) == {1: 0}


def test_s9_a_moment_before_1970_is_the_start_of_the_log(
    reader: KafkaWatermarkReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Negative timestamps have special meanings: -1 is the end of the log."""
    name = topic()
    produce_values(broker.bootstrap, name, 3)
    before = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
    assert reader.offsets_at(name, [0], before) == {0: 0}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"retention.ms": "3600000"}, timedelta(hours=1)),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": str(2**63 - 1)}, None),
        ({"retention.ms": "3600000", "cleanup.policy": "compact"}, None),
        ({"retention.ms": "3600000", "cleanup.policy": "compact,delete"}, timedelta(hours=1)),
    ],
)
def test_s7_the_retention_time_is_the_topics_setting(
    reader: KafkaWatermarkReader,
    topic: TopicFactory,
    config: dict[str, str],
    expected: timedelta | None,
) -> None:
    """None for a topic that deletes nothing because of its age."""
    assert reader.retention_time(topic(config=config)) == expected


def test_the_retention_of_a_missing_topic_raises_topic_missing(
    reader: KafkaWatermarkReader,
) -> None:
    with pytest.raises(TopicMissing):
        reader.retention_time("no-such-topic")


def test_the_error_of_a_missing_topic_suggests_existing_topics(
    reader: KafkaWatermarkReader, topic: TopicFactory
) -> None:
    """Plans and the status read watermarks only."""
    name = topic()
    with pytest.raises(TopicMissing) as caught:
        reader.topic_watermarks(f"{name}x", COMMITTED)
    assert name in caught.value.similar


def test_a_missing_topic_raises_topic_missing(reader: KafkaWatermarkReader) -> None:
    with pytest.raises(TopicMissing, match="no-such-topic"):
        reader.topic_watermarks("no-such-topic", COMMITTED)
    with pytest.raises(TopicMissing, match="no-such-topic"):
        reader.offsets_at("no-such-topic", [0], datetime(2026, 1, 1, tzinfo=UTC))


def test_s18_a_dead_bootstrap_server_is_skipped(broker: BrokerStatus, topic: TopicFactory) -> None:
    """The dead server is the first of the list."""
    name = topic()
    (dead,) = free_ports("127.0.0.1", 1)
    reader = KafkaWatermarkReader({"bootstrap.servers": f"127.0.0.1:{dead},{broker.bootstrap}"})
    assert reader.topic_watermarks(name, COMMITTED).partitions == {
        0: Watermarks(low=0, end=0, leader_epoch=0)
    }


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds


def test_an_unreachable_cluster_is_named_within_ten_seconds() -> None:
    """The error names the addresses and what the client observed. A retry can succeed."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports("127.0.0.1", 2))
    reader = KafkaWatermarkReader({"bootstrap.servers": addresses})
    with takes_at_most(10), pytest.raises(KafkaUnavailable) as caught:
        reader.topic_watermarks("events", COMMITTED)
    problem = caught.value.rendered("problem")
    assert f"at {addresses} (" in problem
    assert "Connection refused" in problem
    assert caught.value.exit_code.retryable


def test_a_server_that_does_not_answer_is_named_after_the_connect_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It accepts connections, as a frozen broker does."""
    monkeypatch.setattr(admin_requests, "CONNECT_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        reader = KafkaWatermarkReader({"bootstrap.servers": address})
        with takes_at_most(10), pytest.raises(KafkaUnavailable, match=f"{address} .*: no answer"):
            reader.topic_watermarks("events", COMMITTED)


def test_an_unreachable_cluster_is_named_also_after_a_shorter_timeout() -> None:
    """Pages of the console wait three seconds for an answer."""
    (dead,) = free_ports("127.0.0.1", 1)
    reader = KafkaWatermarkReader({"bootstrap.servers": f"127.0.0.1:{dead}"}, timeout_seconds=1)
    with takes_at_most(5), pytest.raises(KafkaUnavailable, match=str(dead)):
        reader.topic_watermarks("events", COMMITTED)


def test_settings_that_librdkafka_rejects_raise_kafka_refused() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"}
    with pytest.raises(KafkaRefused, match=r"ssl\.ca\.pem") as caught:
        KafkaWatermarkReader({**settings, "ssl.ca.pem": "do-not-tell"})
    assert "do-not-tell" not in str(caught.value)


def test_s24_the_number_of_requests_does_not_grow_with_the_partitions(
    reader: KafkaWatermarkReader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call is one request; `list_offsets` is one request to each leader."""
    small, large = topic(partitions=1), topic(partitions=1_000)
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(AdminClient, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return call(*arguments, **named)

        return counting

    def calls_for(name: str, partitions: int) -> list[str]:
        calls.clear()
        assert len(reader.topic_watermarks(name, COMMITTED).partitions) == partitions
        return sorted(calls)

    for name in ("describe_cluster", "describe_topics", "describe_configs", "list_offsets"):
        monkeypatch.setattr(AdminClient, name, counted(name))

    assert calls_for(large, 1_000) == calls_for(small, 1)
    assert len(calls) == 4


def test_no_offsets_are_requested_while_the_client_waits_for_others(
    reader: KafkaWatermarkReader,
    broker: BrokerStatus,
    topic: TopicFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two such requests at once can end the process: both threads of librdkafka free one list."""
    name = topic(partitions=2)
    list_offsets = AdminClient.list_offsets
    waiting: list[Future[Any]] = []

    def recorded(admin: AdminClient, *arguments: Any, **named: Any) -> Mapping[Any, Future[Any]]:
        assert all(future.done() for future in waiting)
        futures = list_offsets(admin, *arguments, **named)
        waiting.extend(futures.values())
        return futures

    monkeypatch.setattr(AdminClient, "list_offsets", recorded)
    reader.topic_watermarks(name, COMMITTED)
    reader.offsets_at(name, [0, 1], datetime(2025, 1, 1, tzinfo=UTC))
    cluster = KafkaClusterReader({"bootstrap.servers": broker.bootstrap})
    cluster.with_offsets(cluster.describe([name]).topics)
    assert len(waiting) == 3 * 2 * 2


def test_a_client_that_still_waits_for_offsets_is_replaced(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """A refusal by one broker ends the wait for the others."""
    places = [TopicPartition(topic(partitions=1), 0)]
    requests = admin_requests.AdminRequests({"bootstrap.servers": broker.bootstrap})
    first = requests.admin
    for _ in range(2):
        ended = requests.list_offsets(places, OffsetSpec.latest(), 10)[places[0]]
        ended.result()
    assert requests.admin is first
    requests._requested = {places[0]: Future()}
    again = requests.list_offsets(places, OffsetSpec.latest(), 10)
    assert requests.admin is not first
    assert again[places[0]].result().offset == 0


@pytest.mark.faults
def test_new_clients_that_request_offsets_one_after_the_other_do_not_end_the_process(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """With both requests at once, two of three runs of 400 clients ended with SIGSEGV."""
    names = [topic(partitions=20) for _ in range(40)]
    program = (
        "import sys; from tidemark.kafka.cluster import KafkaClusterReader; "
        "config = {'bootstrap.servers': sys.argv[1]}; "
        "topics = KafkaClusterReader(config).describe(sys.argv[2:]).topics; "
        "[KafkaClusterReader(config).with_offsets(topics) for _ in range(400)]"
    )
    subprocess.run([sys.executable, "-c", program, broker.bootstrap, *names], check=True)

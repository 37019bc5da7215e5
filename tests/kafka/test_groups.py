"""Committed offsets of consumer groups, in memory and on Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.conftest import TopicFactory
from tests.support.kafka_judge import group_names
from tests.support.memory import MemoryGroups
from tests.support.transactions import Record, open_transaction, produce_values
from tidemark.bronze.repair.exports import GroupOffsets
from tidemark.kafka.errors import GroupActive, KafkaRefused, KafkaUnavailable, TopicMissing
from tidemark.kafka.groups import KafkaGroupOffsets
from tidemark.local.broker import BrokerStatus
from tidemark.spark.sockets import free_ports


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def groups(request: pytest.FixtureRequest) -> GroupOffsets:
    """Return the groups in memory and those of the embedded broker."""
    if request.param == "memory":
        return MemoryGroups()
    status: BrokerStatus = request.getfixturevalue("broker")
    return KafkaGroupOffsets({"bootstrap.servers": status.bootstrap})


@pytest.fixture
def topics(request: pytest.FixtureRequest, groups: GroupOffsets) -> tuple[str, str]:
    """Return two topics with two partitions each."""
    if isinstance(groups, MemoryGroups):
        return "events", "prices"
    topic: TopicFactory = request.getfixturevalue("topic")
    return topic(partitions=2), topic(partitions=2)


@pytest.fixture
def real(broker: BrokerStatus) -> KafkaGroupOffsets:
    return KafkaGroupOffsets({"bootstrap.servers": broker.bootstrap})


def consumer(bootstrap: str, group: str, **settings: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )


@contextmanager
def member(bootstrap: str, group: str, topic: str, protocol: str) -> Iterator[Consumer]:
    """Return a consumer that has joined its group and has an assignment."""
    joined = consumer(bootstrap, group, **{"group.protocol": protocol})
    try:
        joined.subscribe([topic])
        deadline = time.monotonic() + 60
        while not joined.assignment():
            assert time.monotonic() < deadline, "the consumer got no partition"
            joined.poll(0.1)
        yield joined
    finally:
        joined.close()


# -- both implementations ------------------------------------------------------------------------


def test_an_unknown_group_has_no_committed_offsets(
    groups: GroupOffsets, topics: tuple[str, str], group: str
) -> None:
    """The caller decides whether this is an error."""
    assert groups.committed(group, topics[0], [0, 1]) == {}


def test_committed_offsets_are_returned_for_one_topic_only(
    groups: GroupOffsets, topics: tuple[str, str], group: str
) -> None:
    """Partitions without a commit are omitted; zero is a commit."""
    groups.commit(group, topics[0], {1: 0})
    groups.commit(group, topics[1], {0: 3, 1: 4})
    assert not groups.has_members(group)
    assert groups.committed(group, topics[0], [0, 1]) == {1: 0}
    assert groups.committed(group, topics[1], [0, 1]) == {0: 3, 1: 4}
    assert groups.committed(f"{group}-other", topics[0], [0, 1]) == {}


def test_commit_replaces_offsets_even_by_lower_ones(
    groups: GroupOffsets, topics: tuple[str, str], group: str
) -> None:
    """Other partitions keep their offsets, and a repeated commit changes nothing."""
    groups.commit(group, topics[0], {0: 5, 1: 7})
    for _ in range(2):
        groups.commit(group, topics[0], {0: 2})
        assert groups.committed(group, topics[0], [0, 1]) == {0: 2, 1: 7}


# -- Kafka ---------------------------------------------------------------------------------------


@pytest.mark.broker
def test_offsets_of_a_consumer_are_read_while_it_runs_and_after_its_end(
    real: KafkaGroupOffsets, broker: BrokerStatus, topic: TopicFactory, group: str
) -> None:
    """Reading them creates no group."""
    name = topic(partitions=2)
    produce_values(broker.bootstrap, name, 5)
    real.committed(f"{group}-nosuch", name, [0, 1])
    assert f"{group}-nosuch" not in group_names(broker.bootstrap)
    with member(broker.bootstrap, group, name, "classic") as running:
        running.commit(offsets=[TopicPartition(name, 0, 3)], asynchronous=False)
        assert real.committed(group, name, [0, 1]) == {0: 3}
    assert real.committed(group, name, [0, 1]) == {0: 3}


@pytest.mark.broker
def test_a_consumer_continues_at_exported_offsets(
    real: KafkaGroupOffsets, broker: BrokerStatus, topic: TopicFactory, group: str
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 5)
    real.commit(group, name, {0: 3})
    assert group in group_names(broker.bootstrap)
    continued = consumer(broker.bootstrap, group)
    try:
        continued.subscribe([name])
        (message,) = continued.consume(1, timeout=60)
    finally:
        continued.close()
    assert message.offset() == 3


@pytest.mark.broker
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_commit_to_a_group_with_members_is_refused(
    real: KafkaGroupOffsets, broker: BrokerStatus, topic: TopicFactory, group: str, protocol: str
) -> None:
    """The broker refuses under the old and the new group protocol (KIP-848)."""
    name = topic(partitions=2)
    with member(broker.bootstrap, group, name, protocol) as running:
        running.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
        with pytest.raises(GroupActive, match=group):
            real.commit(group, name, {0: 1, 1: 1})
        assert real.has_members(group)
        assert real.committed(group, name, [0, 1]) == {0: 0}
    assert not real.has_members(group)


@pytest.mark.broker
def test_s8_offsets_of_an_open_transaction_are_read_after_its_end(
    broker: BrokerStatus, topic: TopicFactory, group: str
) -> None:
    """The transaction can still abort them."""
    name = topic()
    produce_values(broker.bootstrap, name, 5)
    impatient = KafkaGroupOffsets({"bootstrap.servers": broker.bootstrap}, timeout_seconds=3)
    reading = consumer(broker.bootstrap, group)
    try:
        with open_transaction(broker.bootstrap, name, [Record()]) as producer:
            producer.send_offsets_to_transaction(
                [TopicPartition(name, 0, 4)], reading.consumer_group_metadata(), 30
            )
            with pytest.raises(KafkaUnavailable):
                impatient.committed(group, name, [0])
            producer.commit_transaction(30)
        deadline = time.monotonic() + 60
        while True:
            try:
                assert impatient.committed(group, name, [0]) == {0: 4}
            except KafkaUnavailable:
                assert time.monotonic() < deadline
            else:
                break
    finally:
        reading.close()


@pytest.mark.broker
def test_commit_to_a_missing_topic_raises_topic_missing(
    real: KafkaGroupOffsets, group: str
) -> None:
    with pytest.raises(TopicMissing, match="no-such-topic"):
        real.commit(group, "no-such-topic", {0: 1})


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_a_transient_error() -> None:
    (dead,) = free_ports("127.0.0.1", 1)
    unavailable = KafkaGroupOffsets({"bootstrap.servers": f"127.0.0.1:{dead}"}, timeout_seconds=1)
    start = time.monotonic()
    with pytest.raises(KafkaUnavailable, match="'old'"):
        unavailable.committed("old", "events", [0, 1])
    with pytest.raises(KafkaUnavailable, match="'old'"):
        unavailable.commit("old", "events", {0: 1})
    assert time.monotonic() - start < 30


def test_settings_that_librdkafka_rejects_raise_kafka_refused() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.ca.pem": "x"}
    with pytest.raises(KafkaRefused, match=r"ssl\.ca\.pem"):
        KafkaGroupOffsets(settings).committed("old", "events", [0, 1])

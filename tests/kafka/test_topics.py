"""Topics on a real broker: created by a request, and sampled without a group."""

from __future__ import annotations

import uuid

import pytest

from tests.conftest import TopicFactory
from tests.support.kafka_judge import group_names
from tests.support.transactions import Record, produce_committed, produce_records, produce_values
from tidemark.core.errors import InvalidSelection
from tidemark.kafka.cluster import KafkaClusterReader
from tidemark.kafka.errors import InvalidTopic, TopicMissing
from tidemark.kafka.topics import KafkaTopics, TopicSample
from tidemark.local.broker import BrokerStatus

pytestmark = pytest.mark.broker


@pytest.fixture
def topics(broker: BrokerStatus) -> KafkaTopics:
    return KafkaTopics({"bootstrap.servers": broker.bootstrap})


def places(sample: TopicSample) -> list[tuple[int, int]]:
    return [(each.partition, each.offset) for each in sample.records]


def test_a_created_topic_has_its_partitions_and_settings_and_takes_records(
    broker: BrokerStatus, topics: KafkaTopics
) -> None:
    name = f"created-{uuid.uuid4().hex[:8]}"
    topics.create(name, 3, {"retention.ms": "86400000"}, dry_run=True)
    with pytest.raises(TopicMissing):
        topics.newest(name, 1, seconds=5, size=1_000)
    topics.create(name, 3, {"retention.ms": "86400000"})
    produce_values(broker.bootstrap, name, 1, partition=2)
    settings = KafkaClusterReader({"bootstrap.servers": broker.bootstrap}).topic_settings(name)
    assert {each.name: each.value for each in settings.values}["retention.ms"] == "86400000"
    assert topics.newest(name, 5, seconds=5, size=1_000).partitions == 3
    for dry_run in (True, False):
        with pytest.raises(InvalidTopic, match="already exists"):
            topics.create(name, 3, {}, dry_run=dry_run)


@pytest.mark.parametrize(("name", "settings"), [("a b", {}), ("", {}), ("fine", {"no.such": "1"})])
def test_a_topic_that_the_brokers_do_not_accept_is_refused(
    topics: KafkaTopics, name: str, settings: dict[str, str]
) -> None:
    with pytest.raises(InvalidTopic):
        topics.create(name, 1, settings)


def test_the_newest_records_are_those_before_the_markers_of_transactions(
    broker: BrokerStatus, topic: TopicFactory, topics: KafkaTopics
) -> None:
    """Each commit takes an offset, so the newest offsets may have no record."""
    name = topic()
    for _ in range(4):
        produce_committed(broker.bootstrap, name, [Record()])
    assert places(topics.newest(name, 3, seconds=20, size=10_000)) == [(0, 2), (0, 4), (0, 6)]


def test_peek_selects_by_timestamp_among_all_partitions_without_a_group(
    broker: BrokerStatus, topic: TopicFactory, topics: KafkaTopics
) -> None:
    name = topic(partitions=3, config={"retention.ms": "-1"})
    before = group_names(broker.bootstrap)
    stamped = [Record(timestamp_ms=1_000 * (n + 1), partition=n % 2) for n in range(6)]
    produce_records(broker.bootstrap, name, stamped)
    assert places(topics.peek(name, 3, seconds=20, size=10_000)) == [(1, 1), (0, 2), (1, 2)]
    oldest = topics.peek(name, 2, oldest=True, seconds=20, size=10_000)
    assert places(oldest) == [(0, 0), (1, 0)]
    one = topics.peek(name, 2, partition=0, seconds=20, size=10_000)
    assert (places(one), one.is_complete) == ([(0, 1), (0, 2)], True)
    assert places(topics.peek(name, 2, partition=2, seconds=20, size=10_000)) == []
    with pytest.raises(InvalidSelection, match="no partition 3"):
        topics.peek(name, 2, partition=3, seconds=20, size=10_000)
    assert group_names(broker.bootstrap) == before


def test_peek_finds_the_newest_or_oldest_records_with_a_key(
    broker: BrokerStatus, topic: TopicFactory, topics: KafkaTopics
) -> None:
    """Records with another key, an empty key or none are beside them."""
    name = topic(partitions=2)
    keys = [b"a"] * 3 + [b"ab", b"", None] * 20
    produce_records(broker.bootstrap, name, [Record(key=key) for key in keys])
    newest = topics.peek(name, 2, key=b"a", seconds=20, size=10_000)
    assert (places(newest), newest.is_complete) == ([(0, 1), (0, 2)], True)
    oldest = topics.peek(name, 1, key=b"", oldest=True, seconds=20, size=10_000)
    assert places(oldest) == [(0, 4)]
    unknown = topics.peek(name, 2, key=b"b", seconds=20, size=10_000)
    assert (places(unknown), unknown.is_complete) == ([], True)


def test_peek_with_a_key_finds_all_wanted_records_in_one_of_many_partitions(
    topic: TopicFactory, topics: KafkaTopics, broker: BrokerStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of candidates, which partitions share, does not apply to them."""
    monkeypatch.setattr("tidemark.kafka.topics._MOST_CANDIDATES", 2)
    name = topic(partitions=2)
    produce_records(broker.bootstrap, name, [Record(key=b"a")] * 3)
    assert len(topics.peek(name, 3, key=b"a", seconds=20, size=10_000).records) == 3


def test_a_search_for_a_key_ends_at_its_limits(
    broker: BrokerStatus, topic: TopicFactory, topics: KafkaTopics
) -> None:
    """The size of the other records counts."""
    name = topic()
    produce_records(broker.bootstrap, name, [Record(key=b"a")] + [Record(key=b"b")] * 100)
    found = topics.peek(name, 1, key=b"a", seconds=20, size=50)
    assert (places(found), found.is_complete) == ([], False)


def test_a_sample_ends_at_its_limits(
    broker: BrokerStatus, topic: TopicFactory, topics: KafkaTopics
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 5)
    small = topics.newest(name, 5, seconds=20, size=1)
    assert (len(small.records), small.is_complete) == (1, False)
    late = topics.newest(name, 5, seconds=0, size=10_000)
    assert (len(late.records), late.is_complete) == (0, False)

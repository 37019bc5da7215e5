"""Values that describe a Kafka cluster."""

from __future__ import annotations

from dataclasses import replace

from tidemark.core.cluster import PartitionDescription, Setting, Settings, TopicDescription
from tidemark.kafka.errors import KafkaUnavailable

WHOLE = PartitionDescription(number=0, leader=1, replicas=(1, 2), isr=(2, 1), first=3, end=10)
LAGGING = PartitionDescription(number=1, leader=2, replicas=(2, 1), isr=(2,), first=0, end=5)
LEADERLESS = PartitionDescription(number=2, leader=None, replicas=(3,), isr=(3,))


def test_s20_a_topic_counts_records_and_partitions_that_lack_replicas_or_leaders() -> None:
    topic = TopicDescription(name="events", partitions=(WHOLE, LAGGING))
    assert (topic.records, topic.under_replicated, topic.leaderless) == (12, 1, 0)


def test_the_records_of_a_topic_are_unknown_if_those_of_a_partition_are() -> None:
    topic = TopicDescription(name="events", partitions=(WHOLE, LAGGING, LEADERLESS))
    assert (topic.records, topic.under_replicated, topic.leaderless) == (None, 1, 1)
    assert TopicDescription(name="undescribed").records is None


def test_records_of_a_topic_and_a_partition_have_plain_values() -> None:
    problem = KafkaUnavailable(operation="list_offsets of events[2]", reason="no answer")
    topic = TopicDescription(
        name="events", topic_id="id-1", partitions=(WHOLE, LEADERLESS), problem=problem
    )
    assert topic.as_record() == {
        "topic": "events",
        "topic_id": "id-1",
        "internal": False,
        "partitions": 2,
        "records": None,
        "under_replicated": 0,
        "leaderless": 1,
        "problem": problem.as_record(),
    }
    assert WHOLE.as_record() == {
        "partition": 0,
        "leader": 1,
        "replicas": [1, 2],
        "isr": [2, 1],
        "first": 3,
        "end": 10,
        "records": 7,
        "under_replicated": False,
        "leaderless": False,
    }


def test_settings_show_what_differs_from_kafkas_defaults_or_all() -> None:
    default = Setting(
        name="segment.ms", value="2", source="default config", is_default=True, is_sensitive=False
    )
    changed = replace(default, name="retention.ms", is_default=False)
    settings = Settings(values=(changed, default))

    def names(*, all_settings: bool) -> list[str]:
        record = settings.as_record(all_settings=all_settings)
        return [each["name"] for each in record["settings"]]

    assert names(all_settings=False) == ["retention.ms"]
    assert names(all_settings=True) == ["retention.ms", "segment.ms"]

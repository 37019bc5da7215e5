"""Offsets of consumer groups, for beginnings and for lag tools; nothing else comes here (I6)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tidemark.adapters.kafka.admin import REFUSALS, AdminCalls
from tidemark.errors import GroupActive, TidemarkError

_OF_MEMBERS = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.NON_EMPTY_GROUP,
}
"""How a broker refuses a commit from outside while a group has members, by protocol and state."""

_WITHOUT_MEMBERS = {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}


class KafkaGroupOffsets:
    """Reads and sets what groups have committed, without joining them.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: How long one request may take before it counts as unanswered.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = 30.0) -> None:
        self._timeout = timeout_seconds
        self._config = config

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """What a group has committed of a topic, by partition; empty for an unknown group.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        calls = _GroupCalls(self._config, group)
        asked = calls.admin.list_consumer_group_offsets(
            # Of all topics: asked by partition, a broker would not tell of others.
            [ConsumerGroupTopicPartitions(group)],
            # What a transaction commits with its records may still be taken back.
            require_stable=True,
            request_timeout=self._timeout,
        )
        places = calls.places("list_consumer_group_offsets", topic, asked[group])
        # A partition without a commit has one of librdkafka's negative marks.
        return {place.partition: place.offset for place in places if place.offset >= 0}

    def has_members(self, group: str) -> bool:
        """Whether consumers have joined the group now, by whatever protocol.

        Raises:
            KafkaUnavailable, KafkaRefused
        """
        calls = _GroupCalls(self._config, group)
        # Describing a group depends on its protocol (KIP-848); the list has the states of all.
        asked = calls.admin.list_consumer_groups(request_timeout=self._timeout)
        listed = calls.answer("list_consumer_groups", "the cluster", asked)
        return any(
            each.group_id == group and each.state not in _WITHOUT_MEMBERS for each in listed.valid
        )

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set a group's offsets; the group is made if there is none.

        Raises:
            GroupActive: The group has members.
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        calls = _GroupCalls(self._config, group)
        wanted = [TopicPartition(topic, partition, at) for partition, at in offsets.items()]
        asked = calls.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=self._timeout
        )
        calls.places("alter_consumer_group_offsets", topic, asked[group])


class _GroupCalls(AdminCalls):
    """Requests about one group, whose answers have an error for each partition as well."""

    def __init__(self, config: Mapping[str, Any], group: str) -> None:
        super().__init__(
            config,
            refusals=REFUSALS | {KafkaError.GROUP_AUTHORIZATION_FAILED},
            needed=f"a principal with Describe on group {group!r}; to export, with Read on it",
        )
        self._group = group

    def places(
        self, operation: str, topic: str, future: Future[ConsumerGroupTopicPartitions]
    ) -> list[TopicPartition]:
        """What was answered about the topic.

        Raises:
            GroupActive, TopicMissing, KafkaUnavailable, KafkaRefused
        """
        asked = f"{operation} (group {self._group!r})"
        answer = self.answer(asked, topic, future)
        mine = [place for place in answer.topic_partitions if place.topic == topic]
        for place in mine:
            if place.error is not None:
                raise self.named(asked, topic, place.error)
        return mine

    def named(self, operation: str, topic: str, error: KafkaError) -> TidemarkError:
        if error.code() in _OF_MEMBERS:
            return GroupActive(group=self._group, reason=error.str())
        return super().named(operation, topic, error)


def consumer_groups(config: Mapping[str, Any]) -> list[str]:
    """Every consumer group that the cluster knows: none of them is ours (S1)."""
    # Named, because a client that is collected takes the answers it waits for with it.
    admin = AdminClient({**config, "log_level": 0})
    found = admin.list_consumer_groups(request_timeout=30).result(timeout=60)
    return sorted(group.group_id for group in found.valid)

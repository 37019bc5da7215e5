"""Offsets of consumer groups, for beginnings and for lag tools; nothing else comes here (I6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tidemark.core.errors import TidemarkError
from tidemark.kafka.admin import REFUSALS, AdminRequests, KafkaErrorMapper, client_settings_error
from tidemark.kafka.errors import GroupActive, KafkaUnavailable

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

_LISTEN_S = 5.0
"""How long to wait for an answer before listening whether there is a reason for none."""
_PAUSE_S = 0.2
"""A coordinator that has just been made needs about a second."""

T = TypeVar("T")


class KafkaGroupOffsets:
    """Reads and sets what groups have committed, without joining them.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: How long one request may take before it counts as unanswered.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = 30.0) -> None:
        self._timeout = timeout_seconds
        self._config = config

    def committed(self, group: str, topic: str, partitions: Collection[int]) -> Mapping[int, int]:
        """What a group has committed, by partition; empty for an unknown group.

        Asked by a consumer of the group's name that never joins it: librdkafka's AdminClient takes
        the process down where a coordinator has moved (librdkafka issue 5040).

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        return self._patiently(lambda: self._committed(group, topic, partitions))

    def _committed(self, group: str, topic: str, partitions: Collection[int]) -> dict[int, int]:
        names = KafkaErrorMapper(*_rights(group))
        operation = f"committed offsets (group {group!r})"
        try:
            consumer = Consumer(
                {
                    **self._config,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "allow.auto.create.topics": False,
                    # What a transaction commits with its records may still be taken back.
                    "isolation.level": "read_committed",
                    "log_level": 0,
                    "error_cb": names.note,
                }
            )
        except KafkaException as raised:
            raise client_settings_error(raised) from raised
        try:
            places = consumer.committed(
                [TopicPartition(topic, partition) for partition in sorted(partitions)],
                timeout=min(self._timeout, _LISTEN_S),
            )
        except KafkaException as raised:
            # A refused coordinator is told here only; the request just times out.
            heard = consumer.poll(_PAUSE_S)
            if heard is not None and heard.error() is not None:
                names.note(heard.error())
            raise names.named(operation, topic, raised.args[0]) from raised
        finally:
            consumer.close()
        for place in places:
            if place.error is not None:
                raise names.named(operation, topic, place.error)
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
        states = {each.group_id: each.state for each in listed.valid}
        if group not in states and listed.errors:
            # Each broker tells of the groups that it coordinates, and some did not answer.
            raise calls.named("list_consumer_groups", "the cluster", listed.errors[0].args[0])
        return states.get(group, ConsumerGroupState.DEAD) not in _WITHOUT_MEMBERS

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set a group's offsets; the group is made if there is none.

        Raises:
            GroupActive: The group has members.
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        self._patiently(lambda: self._commit(group, topic, offsets))

    def _commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        calls = _GroupCalls(self._config, group)
        wanted = [TopicPartition(topic, partition, at) for partition, at in offsets.items()]
        asked = calls.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=self._timeout
        )
        operation = f"alter_consumer_group_offsets (group {group!r})"
        for place in calls.answer(operation, topic, asked[group]).topic_partitions:
            if place.error is not None:
                raise calls.named(operation, topic, place.error)

    def _patiently(self, step: Callable[[], T]) -> T:
        """What a request comes to, made again while a group's coordinator is moving or loading."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return step()
            except KafkaUnavailable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)


class _GroupCalls(AdminRequests):
    """Requests about one group."""

    def __init__(self, config: Mapping[str, Any], group: str) -> None:
        super().__init__(config, *_rights(group))
        self._group = group

    def named(self, operation: str, topic: str, error: KafkaError) -> TidemarkError:
        if error.code() in _OF_MEMBERS:
            return GroupActive(group=self._group, reason=error.str())
        return super().named(operation, topic, error)


def _rights(group: str) -> tuple[Collection[int], str]:
    """Codes of a refusal, and what is needed."""
    return (
        REFUSALS | {KafkaError.GROUP_AUTHORIZATION_FAILED},
        f"a principal with Describe on group {group!r}; to export, with Read on it",
    )


def consumer_group_ids(config: Mapping[str, Any]) -> list[str]:
    """Every consumer group that the cluster knows: none of them is ours (S1)."""
    # Named, because a client that is collected takes the answers it waits for with it.
    admin = AdminClient({**config, "log_level": 0})
    found = admin.list_consumer_groups(request_timeout=30).result(timeout=60)
    return sorted(group.group_id for group in found.valid)

"""Committed offsets of consumer groups, as start offsets and for lag tools.

Tidemark itself keeps no state in a group (I6).
"""

from __future__ import annotations

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
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tidemark.core.errors import TidemarkError
from tidemark.kafka.admin import (
    REFUSAL_CODES,
    AdminRequests,
    KafkaErrorMapper,
    client_settings_error,
)
from tidemark.kafka.errors import GroupActive, KafkaUnavailable

_ACTIVE_GROUP_CODES = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.NON_EMPTY_GROUP,
}
"""Codes with which a broker refuses a commit from outside a group with members. The code depends
on the group's protocol and state."""

_STATES_WITHOUT_MEMBERS = {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}

_COORDINATOR_TIMEOUT_S = 5.0
"""Seconds to wait for a coordinator before reading the client's reason for the missing answer."""
_RETRY_PAUSE_S = 0.2
"""Seconds between two attempts; a new coordinator needs about one second."""

T = TypeVar("T")


class KafkaGroupOffsets:
    """Reads and sets the committed offsets of groups, without joining them.

    The methods raise `KafkaFailure`, like those of all classes of this folder.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: Longest duration of one request, in seconds.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = 30.0) -> None:
        self._timeout = timeout_seconds
        self._config = config

    def committed(self, group: str, topic: str, partitions: Collection[int]) -> Mapping[int, int]:
        """Return the committed offsets of a group by partition; empty for an unknown group.

        A consumer with the group's name sends the request and never joins the group. librdkafka's
        AdminClient would end the process if a coordinator has moved (librdkafka issue 5040).
        """
        return self._retry(lambda: self._committed(group, topic, partitions))

    def _committed(self, group: str, topic: str, partitions: Collection[int]) -> dict[int, int]:
        errors = KafkaErrorMapper(*_group_rights(group))
        operation = f"committed offsets (group {group!r})"
        try:
            consumer = Consumer(
                {
                    **self._config,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "allow.auto.create.topics": False,
                    # An open transaction can still abort offsets that it has committed.
                    "isolation.level": "read_committed",
                    "log_level": 0,
                    "error_cb": errors.on_error,
                }
            )
        except KafkaException as raised:
            raise client_settings_error(raised) from raised
        try:
            answers = consumer.committed(
                [TopicPartition(topic, partition) for partition in sorted(partitions)],
                timeout=min(self._timeout, _COORDINATOR_TIMEOUT_S),
            )
        except KafkaException as raised:
            # Only `poll` returns the coordinator's refusal; the request itself just times out.
            message = consumer.poll(_RETRY_PAUSE_S)
            if message is not None and message.error() is not None:
                errors.on_error(message.error())
            raise errors.named_error(operation, topic, raised.args[0]) from raised
        finally:
            consumer.close()
        for answer in answers:
            if answer.error is not None:
                raise errors.named_error(operation, topic, answer.error)
        # librdkafka returns a negative offset for a partition without a commit.
        return {answer.partition: answer.offset for answer in answers if answer.offset >= 0}

    def has_members(self, group: str) -> bool:
        """Return whether the group has members now, for every group protocol."""
        requests = _GroupRequests(self._config, group)
        # Describing a group depends on its protocol (KIP-848); the list has the states of all.
        future = requests.admin.list_consumer_groups(request_timeout=self._timeout)
        listed = requests.result("list_consumer_groups", "the cluster", future)
        states = {each.group_id: each.state for each in listed.valid}
        if group not in states and listed.errors:
            # Each broker lists the groups that it coordinates, and some brokers did not answer.
            error = listed.errors[0].args[0]
            raise requests.named_error("list_consumer_groups", "the cluster", error)
        return states.get(group, ConsumerGroupState.DEAD) not in _STATES_WITHOUT_MEMBERS

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group; create the group if it does not exist.

        Raises:
            GroupActive: The group has members.
        """
        self._retry(lambda: self._commit(group, topic, offsets))

    def _commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        requests = _GroupRequests(self._config, group)
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        futures = requests.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=self._timeout
        )
        operation = f"alter_consumer_group_offsets (group {group!r})"
        for answer in requests.result(operation, topic, futures[group]).topic_partitions:
            if answer.error is not None:
                raise requests.named_error(operation, topic, answer.error)

    def _retry(self, request: Callable[[], T]) -> T:
        """Return the result of a request; retry while the group's coordinator moves or loads."""
        retrying = Retrying(
            retry=retry_if_exception_type(KafkaUnavailable),
            stop=stop_after_delay(self._timeout),
            wait=wait_fixed(_RETRY_PAUSE_S),
            reraise=True,
        )
        return retrying(request)


class _GroupRequests(AdminRequests):
    """Admin requests about one group."""

    def __init__(self, config: Mapping[str, Any], group: str) -> None:
        super().__init__(config, *_group_rights(group))
        self._group = group

    def named_error(self, operation: str, topic: str, error: KafkaError) -> TidemarkError:
        if error.code() in _ACTIVE_GROUP_CODES:
            return GroupActive(group=self._group, reason=error.str())
        return super().named_error(operation, topic, error)


def _group_rights(group: str) -> tuple[Collection[int], str]:
    """Return the refusal codes of group requests, and the rights that the requests need."""
    return (
        REFUSAL_CODES | {KafkaError.GROUP_AUTHORIZATION_FAILED},
        f"a principal with Describe on group {group!r}; to export, with Read on it",
    )


def consumer_group_ids(config: Mapping[str, Any]) -> list[str]:
    """Return the ids of all consumer groups of the cluster; Tidemark has none (S1)."""
    # The variable keeps the client alive: a collected client drops the answers that it waits for.
    admin = AdminClient({**config, "log_level": 0})
    listed = admin.list_consumer_groups(request_timeout=30).result(timeout=60)
    return sorted(group.group_id for group in listed.valid)

"""Kafka's marks and topic ids through librdkafka's AdminClient: no consumer, no group (I6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeVar

from confluent_kafka import (
    IsolationLevel as RdIsolationLevel,
)
from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidemark.core.marks import IsolationLevel, Marks, TopicMarks
from tidemark.errors import KafkaRefused, KafkaUnavailable, TopicMissing

_ISOLATION = {
    IsolationLevel.READ_COMMITTED: RdIsolationLevel.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: RdIsolationLevel.READ_UNCOMMITTED,
}

_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError._SSL,
}

T = TypeVar("T")


class KafkaMarkReader:
    """Reads marks with three requests, however many partitions there are.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: How long one request may take before it counts as unanswered.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = 30.0) -> None:
        # Why a connection failed is told to this callback only; requests just time out.
        self._seen: list[tuple[int, str]] = []
        self._admin = AdminClient(
            {
                **config,
                # librdkafka prints each lost connection; errors reach us through the callback.
                "log_level": 0,
                "error_cb": lambda error: self._seen.append((error.code(), error.str())),
            }
        )
        self._timeout = timeout_seconds

    def topic_marks(self, topic: str, isolation_level: IsolationLevel) -> TopicMarks:
        """Marks of every partition, and the topic's identity.

        The low-water marks are read before the ends, so that a log that grows meanwhile never
        shows an end below its start.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        cluster_id, topic_id, partitions = self._describe(topic)
        lows = self._offsets(topic, partitions, OffsetSpec.earliest(), isolation_level)
        ends = self._offsets(topic, partitions, OffsetSpec.latest(), isolation_level)
        return TopicMarks(
            cluster_id=cluster_id,
            topic=topic,
            topic_id=topic_id,
            isolation_level=isolation_level,
            partitions={p: Marks(low=lows[p], end=ends[p]) for p in partitions},
        )

    def offsets_at(
        self, topic: str, partitions: Sequence[int], moment: datetime
    ) -> Mapping[int, int]:
        """First offset stamped at or after `moment`, by partition; the end where none is.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        spec = OffsetSpec.for_timestamp(int(moment.timestamp() * 1000))
        level = IsolationLevel.READ_UNCOMMITTED
        found = self._offsets(topic, partitions, spec, level)
        ends = self._offsets(topic, partitions, OffsetSpec.latest(), level)
        return {p: found[p] if found[p] >= 0 else ends[p] for p in partitions}

    def _describe(self, topic: str) -> tuple[str, str, list[int]]:
        cluster = self._admin.describe_cluster(request_timeout=self._timeout)
        topics = self._admin.describe_topics(
            TopicCollection([topic]), request_timeout=self._timeout
        )
        described = self._answer("describe_topics", topic, topics[topic])
        cluster_id = self._answer("describe_cluster", topic, cluster).cluster_id
        return (
            cluster_id,
            str(described.topic_id),
            [p.id for p in described.partitions],
        )

    def _offsets(
        self,
        topic: str,
        partitions: Sequence[int],
        spec: OffsetSpec,
        isolation_level: IsolationLevel,
    ) -> dict[int, int]:
        futures = self._admin.list_offsets(
            {TopicPartition(topic, p): spec for p in partitions},
            isolation_level=_ISOLATION[isolation_level],
            request_timeout=self._timeout,
        )
        return {
            tp.partition: self._answer("list_offsets", topic, future).offset
            for tp, future in futures.items()
        }

    def _answer(self, operation: str, topic: str, future: Future[T]) -> Any:
        try:
            return future.result()
        except KafkaException as raised:
            raise self._named(operation, topic, raised.args[0]) from raised

    def _named(
        self, operation: str, topic: str, error: KafkaError
    ) -> TopicMissing | KafkaRefused | KafkaUnavailable:
        if error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        ):
            return TopicMissing(topic=topic)
        refused = [reason for code, reason in self._seen if code in _REFUSALS]
        if error.code() in _REFUSALS or refused:
            return KafkaRefused(
                operation=f"{operation} of {topic}", reason="; ".join(refused) or error.str()
            )
        return KafkaUnavailable(operation=f"{operation} of {topic}", reason=error.str())

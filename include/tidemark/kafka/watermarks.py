"""Kafka's watermarks and topic ids through librdkafka's AdminClient: no consumer, no group (I6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import (
    IsolationLevel as RdIsolationLevel,
)
from confluent_kafka.admin import (
    ConfigResource,
    ListOffsetsResultInfo,
    OffsetSpec,
    ResourceType,
)

from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.kafka.admin import AdminRequests
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable, NoTopicId

_ISOLATION = {
    IsolationLevel.READ_COMMITTED: RdIsolationLevel.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: RdIsolationLevel.READ_UNCOMMITTED,
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_FOR_EVER_MS = timedelta(days=36_500) // _MS
"""The longest time that Kafka can be told is said for ever, too."""

_NO_ID = {"", "None", "AAAAAAAAAAAAAAAAAAAAAA"}
"""What librdkafka says where a broker tells no topic id: nothing, or a UUID of zeros."""


class KafkaWatermarkReader:
    """Reads watermarks with four requests, however many partitions there are.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: How long one request may take before it counts as unanswered.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = 30.0) -> None:
        self._timeout = timeout_seconds
        self._calls = AdminRequests(config)

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        """Watermarks of every partition, and the topic's identity.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        self._calls.connect()
        cluster_id, topic_id, partitions = self._describe(topic)
        # Both are asked before either is waited for.
        asked = [
            self._ask_offsets(topic, partitions, spec, isolation_level)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        ]
        lows, ends = (self._listed(topic, futures) for futures in asked)
        return TopicWatermarks(
            cluster_id=cluster_id,
            topic=topic,
            topic_id=topic_id,
            isolation_level=isolation_level,
            partitions={
                p: Watermarks(
                    low=lows[p].offset, end=ends[p].offset, leader_epoch=ends[p].leader_epoch
                )
                for p in partitions
            },
        )

    def offsets_at(
        self, topic: str, partitions: Sequence[int], moment: datetime
    ) -> Mapping[int, int]:
        """First offset stamped at or after `moment`, by partition; the end where none is.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        self._calls.connect()
        # ListOffsets of a missing topic fails without saying so.
        self._describe(topic)
        spec = OffsetSpec.for_timestamp(_milliseconds(moment))
        level = IsolationLevel.READ_UNCOMMITTED
        asked = [
            self._ask_offsets(topic, partitions, each, level)
            for each in (spec, OffsetSpec.latest())
        ]
        found, ends = (self._listed(topic, futures) for futures in asked)
        return {p: found[p].offset if found[p].offset >= 0 else ends[p].offset for p in partitions}

    def retention_time(self, topic: str) -> timedelta | None:
        """How long Kafka keeps a record at least; None for ever, or if it does not tell us.

        Raises:
            TopicMissing, KafkaUnavailable
        """
        self._calls.connect()
        resource = ConfigResource(ResourceType.TOPIC, topic)
        asked = self._calls.admin.describe_configs([resource], request_timeout=self._timeout)
        try:
            settings = self._calls.answer("describe_configs", topic, asked[resource])
        except KafkaRefused:
            return None
        milliseconds = int(settings["retention.ms"].value)
        is_deleted = "delete" in settings["cleanup.policy"].value
        return milliseconds * _MS if is_deleted and 0 <= milliseconds < _FOR_EVER_MS else None

    def _describe(self, topic: str) -> tuple[str, str, list[int]]:
        cluster = self._calls.admin.describe_cluster(request_timeout=self._timeout)
        topics = self._calls.admin.describe_topics(
            TopicCollection([topic]), request_timeout=self._timeout
        )
        described = self._calls.answer("describe_topics", topic, topics[topic])
        cluster_id = self._calls.answer("describe_cluster", topic, cluster).cluster_id
        # librdkafka prints a UUID in plain base64, Kafka's own tools in the URL-safe alphabet.
        topic_id = str(described.topic_id).replace("+", "-").replace("/", "_")
        if topic_id in _NO_ID or not cluster_id:
            raise NoTopicId(topic=topic)
        return (
            cluster_id,
            topic_id,
            [p.id for p in described.partitions],
        )

    def _ask_offsets(
        self,
        topic: str,
        partitions: Sequence[int],
        spec: OffsetSpec,
        isolation_level: IsolationLevel,
    ) -> Mapping[TopicPartition, Future[ListOffsetsResultInfo]]:
        futures: Mapping[TopicPartition, Future[ListOffsetsResultInfo]] = (
            self._calls.admin.list_offsets(
                {TopicPartition(topic, p): spec for p in partitions},
                # fence: ends-of-readers-isolation-level
                isolation_level=_ISOLATION[isolation_level],
                request_timeout=self._timeout,
            )
        )
        return futures

    def _listed(
        self, topic: str, futures: Mapping[TopicPartition, Future[ListOffsetsResultInfo]]
    ) -> Mapping[int, ListOffsetsResultInfo]:
        listed = {
            place.partition: self._calls.answer("list_offsets", topic, future)
            for place, future in futures.items()
        }
        for partition, info in listed.items():
            if info.offset == OFFSET_INVALID:  # fence: silent-leader-has-no-watermarks
                # Where some leaders answer and others do not in time, librdkafka tells no error
                # of these: the offset that it began with is left as it is.
                raise KafkaUnavailable(
                    operation=f"list_offsets of {topic}[{partition}]",
                    reason="no answer from the partition's leader in time",
                )
        return listed


def _milliseconds(moment: datetime) -> int:
    """The first millisecond at or after a moment; negative ones mean something else to Kafka."""
    return max(0, -((_EPOCH - moment) // _MS))

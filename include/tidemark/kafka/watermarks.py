"""Watermarks and topic ids through librdkafka's AdminClient, without consumer or group (I6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from tidemark.kafka.admin import AdminRequests, silent_leader, topic_id_of
from tidemark.kafka.errors import KafkaRefused, NoTopicId, TopicMissing

_ISOLATION = {
    IsolationLevel.READ_COMMITTED: RdIsolationLevel.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: RdIsolationLevel.READ_UNCOMMITTED,
}

TIMEOUT_S = 30.0
"""Longest duration of one request, in seconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_UNLIMITED_MS = timedelta(days=36_500) // _MS
"""Retention from which on this module reports unlimited retention: 100 years."""


class KafkaWatermarkReader:
    """Reads watermarks with four requests, for any number of partitions. Raises `KafkaFailure`.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: Longest duration of one request, in seconds.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = TIMEOUT_S) -> None:
        self._timeout = timeout_seconds
        self._requests = AdminRequests(config)

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        """Return the watermarks of all partitions, the topic id and the cluster id."""
        self._requests.connect()
        cluster_id, topic_id, partitions = self._describe(topic)
        lows = self._offsets(topic, partitions, OffsetSpec.earliest(), isolation_level)
        ends = self._offsets(topic, partitions, OffsetSpec.latest(), isolation_level)
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
        """Return the first offset with a timestamp at or after `moment`, by partition.

        A partition without such a record has its log end offset.
        """
        self._requests.connect()
        # ListOffsets does not report a missing topic as such.
        self._describe(topic)
        spec = OffsetSpec.for_timestamp(_milliseconds(moment))
        level = IsolationLevel.READ_UNCOMMITTED
        # The ends first: a record that is produced between both requests is not skipped.
        ends = self._offsets(topic, partitions, OffsetSpec.latest(), level)
        found = self._offsets(topic, partitions, spec, level)
        return {p: found[p].offset if found[p].offset >= 0 else ends[p].offset for p in partitions}

    def retention_time(self, topic: str) -> timedelta | None:
        """Return the shortest time that Kafka keeps a record.

        None means unlimited retention, or a principal without the right to read the setting.
        """
        self._requests.connect()
        resource = ConfigResource(ResourceType.TOPIC, topic)
        futures = self._requests.admin.describe_configs([resource], request_timeout=self._timeout)
        try:
            settings = self._requests.result("describe_configs", topic, futures[resource])
        except KafkaRefused:
            return None
        milliseconds = int(settings["retention.ms"].value)
        is_deleted = "delete" in settings["cleanup.policy"].value
        return milliseconds * _MS if is_deleted and 0 <= milliseconds < _UNLIMITED_MS else None

    def _describe(self, topic: str) -> tuple[str, str, list[int]]:
        cluster = self._requests.admin.describe_cluster(request_timeout=self._timeout)
        topics = self._requests.admin.describe_topics(
            TopicCollection([topic]), request_timeout=self._timeout
        )
        try:
            described = self._requests.result("describe_topics", topic, topics[topic])
        except TopicMissing as missing:
            raise self._requests.with_suggestions(missing, self._timeout) from missing
        cluster_id = self._requests.result("describe_cluster", topic, cluster).cluster_id
        topic_id = topic_id_of(described)
        if topic_id is None or not cluster_id:
            raise NoTopicId(topic=topic)
        return cluster_id, topic_id, [p.id for p in described.partitions]

    def _offsets(
        self,
        topic: str,
        partitions: Sequence[int],
        spec: OffsetSpec,
        isolation_level: IsolationLevel,
    ) -> Mapping[int, ListOffsetsResultInfo]:
        futures = self._requests.list_offsets(
            [TopicPartition(topic, p) for p in partitions],
            spec,
            self._timeout,
            # fence: ends-of-readers-isolation-level
            isolation_level=_ISOLATION[isolation_level],
        )
        infos = {
            place.partition: self._requests.result("list_offsets", topic, future)
            for place, future in futures.items()
        }
        for partition, info in infos.items():
            if info.offset == OFFSET_INVALID:  # fence: silent-leader-has-no-watermarks
                raise silent_leader(topic, partition)
        return infos


def _milliseconds(moment: datetime) -> int:
    """Return the first millisecond at or after a moment, at least 0.

    Kafka gives negative timestamps a special meaning.
    """
    return max(0, -((_EPOCH - moment) // _MS))

"""Creates topics, and reads a few records of a topic without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from tidemark.core.errors import InvalidSelection, TidemarkError
from tidemark.core.offsets import Span, SpanSet, size_of
from tidemark.core.record import LogRecord
from tidemark.core.sampling import sampled_records, shares
from tidemark.core.watermarks import IsolationLevel
from tidemark.kafka.admin import AdminRequests
from tidemark.kafka.cluster import KafkaClusterReader
from tidemark.kafka.errors import (
    InvalidTopic,
    KafkaFailure,
    KafkaUnavailable,
    TopicMissing,
)
from tidemark.kafka.reader import KafkaLogReader
from tidemark.kafka.watermarks import KafkaWatermarkReader

_INVALID_CODES = frozenset(
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_REPLICA_ASSIGNMENT,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REQUEST,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Codes for a topic that the brokers do not accept."""
_CREATE = "a principal with Create on the topic or the cluster"
_BROKERS_DEFAULT = -1
_VISIBLE_AFTER_S = 20.0
"""Longest time until a new topic has leaders; the request itself has succeeded before."""
_POLL_S = 0.1
_MOST_CANDIDATES = 2_000
"""Maximum number of records that `peek` reads to find the newest ones, over all partitions."""
_LEVEL = IsolationLevel.READ_COMMITTED
"""The default of pipelines: records of open and aborted transactions are not sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSample:
    """Some records of a topic.

    Attributes:
        topic: Topic name.
        partitions: Number of partitions of the topic.
        offsets: Number of readable offsets of the sampled partitions, an upper bound of the
            records.
        records: The records, by partition and offset.
        is_complete: Whether no limit of time or size ended the read.
    """

    topic: str
    partitions: int
    offsets: int
    records: tuple[LogRecord, ...]
    is_complete: bool

    def as_record(self) -> dict[str, Any]:
        """Return the sample as plain values, without the records."""
        return {
            "topic": self.topic,
            "partitions": self.partitions,
            "offsets": self.offsets,
            "complete": self.is_complete,
        }


class KafkaTopics:
    """Creates topics and samples their records. Raises `KafkaFailure`.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: Longest duration of one request, in seconds.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = 30.0) -> None:
        self._config = config
        self._timeout = timeout_seconds
        self._cluster = KafkaClusterReader(config, timeout_seconds)
        self._watermarks = KafkaWatermarkReader(config, timeout_seconds)
        self._reader = KafkaLogReader(config)

    def create(
        self, topic: str, partitions: int, settings: Mapping[str, str], *, dry_run: bool = False
    ) -> None:
        """Create a topic, and wait until its partitions have leaders.

        Args:
            topic: Topic name.
            partitions: Number of partitions.
            settings: Settings of the topic; the brokers have defaults.
            dry_run: Let the brokers check the request, and create nothing.

        Raises:
            InvalidTopic: The topic exists, or the brokers do not accept the name or the settings.
            KafkaUnavailable, KafkaRefused: No broker answers, or they refuse the principal.
        """
        if not topic:
            # librdkafka raises ValueError for an empty name.
            raise InvalidTopic.of_refusal(topic, "the name is empty")
        requests = AdminRequests(self._config, needed=_CREATE)
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=_BROKERS_DEFAULT,
            config=dict(settings),
        )
        answers = requests.admin.create_topics(
            [new], request_timeout=self._timeout, validate_only=dry_run
        )
        try:
            requests.result("create_topics", topic, answers[topic])
        except KafkaFailure as failure:
            raise _creation_error(topic, failure) from failure.__cause__
        if not dry_run:
            self._wait_for_leaders(topic)

    def newest(self, topic: str, records: int, *, seconds: float, size: int) -> TopicSample:
        """Return the newest records of each partition.

        Args:
            topic: Topic name.
            records: Maximum number of records.
            seconds: Longest time for reading.
            size: Size of the records after which reading stops, in bytes.

        Raises:
            TopicMissing: There is no such topic.
            NoTopicId, KafkaUnavailable, KafkaRefused: Its watermarks cannot be read.
        """
        log = self._readable(topic)
        reader = self._reader.limited(topic, _LEVEL, seconds=seconds, size=size)
        found = sampled_records(log, shares(log, records), reader.read)
        return TopicSample(
            topic=topic,
            partitions=len(log),
            offsets=size_of(log),
            records=tuple(found),
            is_complete=reader.is_complete,
        )

    def peek(
        self,
        topic: str,
        records: int,
        *,
        partition: int | None = None,
        key: bytes | None = None,
        oldest: bool = False,
        seconds: float,
        size: int,
    ) -> TopicSample:
        """Return the newest or oldest records of the topic, or of one partition, by timestamp.

        Args:
            topic: Topic name.
            records: Maximum number of records.
            partition: The only partition to read; None for all.
            key: The only key of the returned records; None for all records. The read continues
                until it has enough records with the key, or reaches a limit or the end of the log.
            oldest: Return the oldest records.
            seconds: Longest time for reading.
            size: Size of the records after which reading stops, in bytes.

        Raises:
            InvalidSelection: The topic has no such partition.
            TopicMissing, NoTopicId, KafkaUnavailable, KafkaRefused: As `newest`.
        """
        log = self._readable(topic)
        if partition is not None and partition not in log:
            raise InvalidSelection.of_partition(
                topic=topic, partition=partition, partitions=len(log)
            )
        chosen = log if partition is None else {partition: log[partition]}
        # Any partition may have the newest records, so each is read.
        each = max(1, min(records, _MOST_CANDIDATES // max(1, len(chosen))))
        if key is not None:
            # All records with a key are usually in one partition.
            each = records
        wanted = {number: min(each, spans.size) for number, spans in chosen.items()}
        reader = self._reader.limited(topic, _LEVEL, seconds=seconds, size=size)

        def read(spans: Mapping[int, SpanSet]) -> Iterator[LogRecord]:
            return (found for found in reader.read(spans) if key is None or found.key == key)

        found = sampled_records(chosen, wanted, read, oldest=oldest)
        found.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
        kept = found[:records] if oldest else found[-records:]
        return TopicSample(
            topic=topic,
            partitions=len(log),
            offsets=size_of(chosen),
            records=tuple(kept),
            is_complete=reader.is_complete,
        )

    def _readable(self, topic: str) -> dict[int, SpanSet]:
        """Return the readable offsets by partition; an empty partition has none."""
        # Also finds similar names of a missing topic.
        self._cluster.describe([topic])
        partitions = self._watermarks.topic_watermarks(topic, _LEVEL).partitions
        return {
            number: SpanSet.of([Span(each.low, each.end)] if each.low < each.end else [])
            for number, each in partitions.items()
        }

    def _wait_for_leaders(self, topic: str) -> None:
        deadline = time.monotonic() + _VISIBLE_AFTER_S
        while True:
            try:
                (described,) = self._cluster.describe([topic]).topics
                (described,) = self._cluster.with_offsets([described])
            except TopicMissing:
                described = None
            if described is not None and described.records is not None:
                return
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    operation=f"a request to the leaders of {topic}",
                    reason="the topic was created, and has no leaders yet",
                )
            time.sleep(_POLL_S)


def _creation_error(topic: str, failure: KafkaFailure) -> TidemarkError:
    """Return the error of a refused request, by the code of the brokers."""
    cause = failure.__cause__
    if not isinstance(cause, KafkaException):
        return failure
    error = cause.args[0]
    if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return InvalidTopic.of_existing(topic)
    if error.code() in _INVALID_CODES:
        return InvalidTopic.of_refusal(topic, error.str())
    return failure

"""The independent reader: a table must have the records that librdkafka reads from its topic."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

Range = tuple[int, int]


class DeliveredRecord(NamedTuple):
    """One record as librdkafka delivers it; None is not empty."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int
    timestamp_ms: int


def as_delivered(message: Message) -> DeliveredRecord:
    """Return a message of any of librdkafka's consumers as a record."""
    kind, milliseconds = message.timestamp()
    return DeliveredRecord(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        kind,
        milliseconds,
    )


def read_ranges(
    bootstrap: str,
    topic: str,
    ranges: Mapping[int, Range],
    *,
    isolation: str = "read_committed",
    timeout_s: float = 180.0,
) -> list[DeliveredRecord]:
    """Read every visible record of half-open ranges, ordered by partition and offset.

    A range may end in gaps (transaction markers, aborted records). The reader stops when its
    position has passed the end of the range, or at the end of the log.

    Args:
        bootstrap: Address list.
        topic: Topic.
        ranges: Partition to `(start, end)`; ends may be past the end of the log.
        isolation: read_committed or read_uncommitted.
        timeout_s: Time limit.
    """
    consumer = _consumer(bootstrap, isolation)
    ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
    consumer.assign([TopicPartition(topic, p, ranges[p][0]) for p in ends])
    deadline = time.monotonic() + timeout_s
    records: list[DeliveredRecord] = []
    try:
        while ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: not read to the end in {timeout_s} s: {ends}")
            for message in consumer.consume(1_000, timeout=0.2):
                _take(message, ends, records)
            for place in consumer.position([TopicPartition(topic, p) for p in ends]):
                if place.offset >= ends[place.partition]:
                    del ends[place.partition]
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def read_all(
    bootstrap: str, topic: str, *, isolation: str = "read_committed"
) -> list[DeliveredRecord]:
    """Read every visible record of a topic."""
    return read_ranges(bootstrap, topic, log_ranges(bootstrap, topic), isolation=isolation)


def log_ranges(bootstrap: str, topic: str, *, timeout_s: float = 180.0) -> dict[int, Range]:
    """Return the low and high watermark of every partition; retry while leaders change."""
    consumer = _consumer(bootstrap, "read_uncommitted")
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                return _watermarks(consumer, topic)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
    finally:
        consumer.close()


def _watermarks(consumer: Consumer, topic: str) -> dict[int, Range]:
    described = consumer.list_topics(topic, timeout=10).topics[topic]
    if described.error is not None:
        raise KafkaException(described.error)
    return {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        for partition in sorted(described.partitions)
    }


def group_names(bootstrap: str) -> set[str]:
    """Return the consumer groups of the cluster (S1)."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return {group.group_id for group in admin.list_consumer_groups().result(timeout=30).valid}


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            # Required by the library. No group is created, because the consumer does not join it.
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "check.crcs": True,
        }
    )


def _take(message: Message, ends: dict[int, int], records: list[DeliveredRecord]) -> None:
    partition = message.partition()
    error = message.error()
    if error is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        ends.pop(partition, None)
        return
    if message.offset() < ends.get(partition, 0):
        records.append(as_delivered(message))

"""Changes of topics by operators and by retention; each returns when it has taken effect."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.kafka_judge import DeliveredRecord, log_ranges, read_all
from tests.support.transactions import Record, produce_records

_DEADLINE_S = 120.0

COMPACTED: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.001",
}
"""Settings of a topic that the cleaner compacts as soon as its active segment is rolled."""

ROLL_MS = 60_000
"""Age difference of records with which the later one starts a new segment.

It is many times `segment.ms`, so that the duration of a test does not matter.
"""


def make_topic(
    admin: AdminClient,
    bootstrap: str,
    name: str,
    *,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
) -> str:
    """Create a topic, and return its name when all its partitions answer."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        new = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        try:
            admin.create_topics([new])[name].result(timeout=30)
        except KafkaException as error:
            # The name of a deleted topic is taken for a moment.
            taken = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            if not taken or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            _wait_for_partitions(bootstrap, name, partitions)
            return name


def recreate_topic(admin: AdminClient, bootstrap: str, name: str) -> None:
    """Delete a topic, and create it again."""
    delete_topic(admin, name)
    make_topic(admin, bootstrap, name)


def delete_topic(admin: AdminClient, name: str) -> None:
    """Delete a topic, and return when it is no longer listed."""
    admin.delete_topics([name])[name].result(timeout=30)
    deadline = time.monotonic() + _DEADLINE_S
    while name in admin.list_topics(timeout=10).topics:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} is still listed")
        time.sleep(0.02)


def add_partitions(admin: AdminClient, bootstrap: str, name: str, total: int) -> None:
    """Add partitions to a topic until it has `total`."""
    admin.create_partitions([NewPartitions(name, total)])[name].result(timeout=30)
    _wait_for_partitions(bootstrap, name, total)


def delete_records(admin: AdminClient, name: str, before: int, partition: int = 0) -> None:
    """Raise the low watermark of a partition, as retention does."""
    for answer in admin.delete_records([TopicPartition(name, partition, before)]).values():
        answer.result(timeout=30)


def _wait_for_partitions(bootstrap: str, name: str, wanted: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while len(log_ranges(bootstrap, name)) != wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} does not have {wanted} partitions")
        time.sleep(0.02)


def wait_for_compaction(bootstrap: str, topic: str, offsets: set[int]) -> list[DeliveredRecord]:
    """Wait until partition 0 has exactly these offsets, and return the records of the topic."""
    deadline = time.monotonic() + 2 * _DEADLINE_S
    while True:
        records = read_all(bootstrap, topic)
        if {record.offset for record in records} == offsets:
            return records
        if time.monotonic() > deadline:
            left = sorted(record.offset for record in records)
            raise TimeoutError(f"{topic} still holds {left}, not {sorted(offsets)}")
        time.sleep(0.2)


def produce_rolled(bootstrap: str, topic: str, *segments: list[Record]) -> None:
    """Append records to separate segments. All segments but the last one can be compacted.

    Kafka rolls segments by the timestamps of records: each segment is a minute older than the next.
    """
    now_ms = int(time.time() * 1000)
    for before_last, records in zip(range(len(segments) - 1, -1, -1), segments, strict=True):
        stamp = now_ms - before_last * ROLL_MS
        produce_records(bootstrap, topic, [r._replace(timestamp_ms=stamp) for r in records])

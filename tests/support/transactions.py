"""Producers of exact records and of transactions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidemark.local.producer import producer_settings


class Record(NamedTuple):
    """A record to produce. None is not empty; a timestamp of None is the current time.

    Old timestamps need a topic without retention, because retention uses them.
    """

    key: bytes | None = None
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0


def produce_records(
    bootstrap: str, topic: str, records: Sequence[Record], *, max_bytes: int = 1_000_000
) -> None:
    """Append records and return when all are acknowledged.

    Args:
        bootstrap: Address list.
        topic: Topic.
        records: The records.
        max_bytes: The producer's own limit for a record; the topic has one as well.
    """
    settings = producer_settings({"bootstrap.servers": bootstrap})
    append(Producer({**settings, "message.max.bytes": max_bytes}), topic, records)


def produce_values(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    """Append `count` records without keys to one partition."""
    values = (b"%d" % number for number in range(count))
    produce_records(bootstrap, topic, [Record(value=v, partition=partition) for v in values])


def produce_months(
    bootstrap: str, topic: str, months: Mapping[int, int], partitions: Sequence[int] = (0, 1)
) -> None:
    """Append records to each partition; `months` has their number by month of 2025."""
    records = [
        Record(timestamp_ms=round(stamped.timestamp() * 1000), partition=partition)
        for month, count in months.items()
        for stamped in [datetime(2025, month, 15, tzinfo=UTC)]
        for partition in partitions
        for _ in range(count)
    ]
    produce_records(bootstrap, topic, records)


@contextmanager
def open_transaction(bootstrap: str, topic: str, records: Sequence[Record]) -> Iterator[Producer]:
    """Write records in a transaction; if the block raises, the transaction is aborted."""
    producer = _transactional(bootstrap, uuid.uuid4().hex)
    producer.begin_transaction()
    append(producer, topic, records)
    committed: list[bool] = []
    try:
        yield producer
        committed.append(True)
    finally:
        if not committed:
            producer.abort_transaction(30)


def produce_committed(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    """Append records in a transaction that commits."""
    with open_transaction(bootstrap, topic, records) as producer:
        producer.commit_transaction(30)
    wait_until_stable(bootstrap, topic)


def produce_aborted(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    """Append records in a transaction that aborts."""
    with open_transaction(bootstrap, topic, records) as producer:
        producer.abort_transaction(30)
    wait_until_stable(bootstrap, topic)


def leave_hanging(bootstrap: str, topic: str, records: Sequence[Record]) -> str:
    """Write records in a transaction whose producer then stops, and return its id.

    The transaction stays open until its timeout (a minute), or until `fence` ends it.
    """
    transactional_id = uuid.uuid4().hex
    producer = _transactional(bootstrap, transactional_id)
    producer.begin_transaction()
    append(producer, topic, records)
    return transactional_id


def fence(bootstrap: str, topic: str, transactional_id: str) -> None:
    """Abort a hanging transaction by a new producer with its id."""
    _transactional(bootstrap, transactional_id)
    wait_until_stable(bootstrap, topic)


def wait_until_stable(bootstrap: str, topic: str, *, timeout_s: float = 120.0) -> None:
    """Wait until no partition has an open transaction; brokers write markers asynchronously."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics(topic, timeout=timeout_s).topics[topic].partitions
    wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in partitions}
    deadline = time.monotonic() + timeout_s
    while _ends(admin, wanted, IsolationLevel.READ_COMMITTED) != _ends(
        admin, wanted, IsolationLevel.READ_UNCOMMITTED
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} still has an open transaction after {timeout_s} s")
        time.sleep(0.02)


def _ends(
    admin: AdminClient, wanted: dict[TopicPartition, OffsetSpec], level: IsolationLevel
) -> dict[int, int]:
    answers = admin.list_offsets(wanted, isolation_level=level)
    return {place.partition: answer.result(30).offset for place, answer in answers.items()}


def _transactional(bootstrap: str, transactional_id: str) -> Producer:
    settings = producer_settings({"bootstrap.servers": bootstrap})
    producer = Producer({**settings, "transactional.id": transactional_id})
    producer.init_transactions(30)
    return producer


def append(producer: Producer, topic: str, records: Sequence[Record]) -> None:
    """Append records with a given producer, and return when all are acknowledged."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    now_ms = int(time.time() * 1000)
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            timestamp=now_ms if record.timestamp_ms is None else record.timestamp_ms,
            partition=record.partition,
            on_delivery=delivered,
        )
    left = producer.flush(30)
    if failures:
        raise KafkaException(failures[0])
    if left:
        raise TimeoutError(f"{left} records of {topic} not acknowledged")

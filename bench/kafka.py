"""Topics full of records, by Kafka's own perf tools."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from zlib import crc32

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.clock import run_process
from bench.context import PROJECT, Context

RECORD_BYTES = 200
_PARTITIONS_AT_ONCE = 5_000
"""Kafka's controller writes at most 10,000 records for one request."""
_JARS = PROJECT / ".tidemark" / "jvm" / "kafka"


class _Produce(Protocol):
    def __call__(
        self, value: bytes, partition: int, key: bytes | None, timestamp_ms: int = 0
    ) -> None:
        """Produce a record; a timestamp of 0 is the current time."""


_ACKNOWLEDGED = re.compile(r"^(\d+) records sent", re.MULTILINE)


def make_topic(context: Context, topic: str, partitions: int) -> None:
    """Make an empty topic."""
    at_once = min(partitions, _PARTITIONS_AT_ONCE)
    admin = AdminClient(_client(context))
    admin.create_topics([NewTopic(topic, num_partitions=at_once)])[topic].result(timeout=60)
    for total in range(2 * at_once, partitions + at_once, at_once):
        grow_topic(context, topic, min(total, partitions))


def grow_topic(context: Context, topic: str, partitions: int) -> None:
    """Add partitions to a topic, and return when the broker lists them."""
    admin = AdminClient(_client(context))
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(timeout=60)
    deadline = time.monotonic() + 60
    while len(admin.list_topics(topic, timeout=30).topics[topic].partitions) < partitions:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the broker does not list {partitions} partitions of {topic}")


def fill_topic(
    context: Context, topic: str, records: int, record_bytes: int = RECORD_BYTES
) -> None:
    """Produce records without keys, spread evenly over the partitions, with acks=all.

    Source: `kafka-producer-perf-test` of Apache Kafka.

    Args:
        context: Context of the run.
        topic: An existing topic.
        records: Number of records.
        record_bytes: Size of each record, which consists of random capital letters.
    """
    log = context.home / f"produce-{topic}.log"
    command = [*_tool("ProducerPerformance"), "--topic", topic, "--num-records", str(records)]
    command += ["--record-size", str(record_bytes), "--throughput", "-1", "--producer-props"]
    command += [f"bootstrap.servers={context.bootstrap}", "acks=all"]
    run_process(command, log, {})
    sent = int(_ACKNOWLEDGED.findall(log.read_text())[-1])
    if sent != records:
        raise RuntimeError(f"the producer tool sent {sent} of {records} records")


def fill_values(
    context: Context,
    topic: str,
    partitions: int,
    records: int,
    values: Sequence[bytes],
    keys: Sequence[bytes] | None = None,
) -> None:
    """Produce records with these values in turn, spread evenly over the partitions, with acks=all.

    A value and the key at the same index form a record. Without `keys`, records have no key.
    """
    with _producing(context, topic) as produce:
        for number in range(records):
            place = number % len(values)
            produce(values[place], number % partitions, keys[place] if keys else None)


def fill_keyed(
    context: Context, topic: str, partitions: int, keys: Sequence[bytes], values: Sequence[bytes]
) -> None:
    """Produce values with their keys, acks=all; all records of a key go to one partition."""
    with _producing(context, topic) as produce:
        for key, value in zip(keys, values, strict=True):
            produce(value, crc32(key) % partitions, key)


def fill_partitions(
    context: Context, topic: str, partitions: int, records: int, timestamp_ms: int = 0
) -> None:
    """Produce `records` records of one byte to each partition, with acks=all.

    Their timestamp is `timestamp_ms`, in milliseconds since 1970; 0 is the current time.
    """
    with _producing(context, topic) as produce:
        for partition in range(partitions):
            for _ in range(records):
                produce(b"x", partition, None, timestamp_ms)


@contextmanager
def _producing(context: Context, topic: str) -> Iterator[_Produce]:
    """Yield a function that produces a record; at the end, check that all are acknowledged."""
    lost = []
    noted = {
        "on_delivery": lambda error, _: lost.append(error) if error else None,
        "linger.ms": 50,
        "queue.buffering.max.kbytes": 2**20,
    }
    producer = Producer({**_client(context), **noted})

    def produce(value: bytes, partition: int, key: bytes | None, timestamp_ms: int = 0) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, timestamp=timestamp_ms)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)

    yield produce
    left = producer.flush(120)
    if left or lost:
        raise RuntimeError(
            f"{left + len(lost)} records of {topic} were not acknowledged: {lost[:1]}"
        )


def consume_topic(context: Context, topic: str, records: int) -> dict[str, float]:
    """Read a topic with `kafka-consumer-perf-test`: fetch only, one thread, nothing decoded.

    Returns:
        `seconds` and `records_per_second` of the fetches alone, as the tool reports them. They
        exclude the start of the JVM and the joining of the group.
    """
    log = context.home / f"consume-{topic}.log"
    command = [*_tool("ConsumerPerformance"), "--topic", topic, "--messages", str(records)]
    command += ["--bootstrap-server", context.bootstrap, "--timeout", "30000"]
    run_process(command, log, {})
    return parse_consumer_report(log.read_text())


def parse_consumer_report(text: str) -> dict[str, float]:
    """Return the figures of the consumer tool's table."""
    lines = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    first = next(number for number, line in enumerate(lines) if line[0] == "start.time")
    header = lines[first]
    # Log lines may stand between the header and the figures.
    figures = next(line for line in lines[first + 1 :] if len(line) == len(header))
    values = dict(zip(header, figures, strict=True))
    return {
        "records": float(values["data.consumed.in.nMsg"]),
        "seconds": float(values["fetch.time.ms"]) / 1000,
        "records_per_second": float(values["fetch.nMsg.sec"]),
    }


def _client(context: Context) -> dict[str, Any]:
    # librdkafka prints that a topic has more partitions now.
    return {"bootstrap.servers": context.bootstrap, "log_level": 0}


def _tool(name: str) -> list[str]:
    return ["java", "-cp", f"{_JARS}/*", f"org.apache.kafka.tools.{name}"]

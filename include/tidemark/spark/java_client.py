"""Reads headers with Kafka's Java consumer in the driver's JVM.

librdkafka cannot decode header names that are not UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark.core.errors import SetupError
from tidemark.core.plan import Plan
from tidemark.core.record import Headers
from tidemark.spark.connect import SUBMIT_ADVICE
from tidemark.spark.sessions import has_driver_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONSUMER: Mapping[str, str] = {
    "key.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    "value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer",
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "max.poll.records": "1",
}
_POLL_S = 60


def headers_at(
    session: SparkSession,
    kafka_options: Mapping[str, str],
    plan: Plan,
    partition: int,
    offset: int,
) -> Headers:
    """Return the headers of one record as Spark's Kafka source reads them.

    Bytes of a name that are not UTF-8 become U+FFFD.

    Raises:
        Py4JError: The consumer failed.
        ValueError: The partition has no record at the offset.
        SetupError: The session is on a Spark Connect server, whose JVM is in another process.
    """
    if not has_driver_jvm():
        place = f"partition {partition} offset {offset}"
        raise SetupError.of_engine(
            engine="Spark Connect",
            mismatch=f"the record at {place} has a timestamp that Spark alters, and a header whose "
            "name is not UTF-8",
            needed="Kafka's Java client, for such a header",
            advice=f"Run this plan {SUBMIT_ADVICE}.",
        )
    jvm = session._jvm
    settings = jvm.java.util.HashMap()
    for name, value in kafka_options.items():
        if name.startswith("kafka."):
            settings.put(name.removeprefix("kafka."), value)
    for name, value in _CONSUMER.items():
        settings.put(name, value)
    settings.put("isolation.level", plan.isolation_level.value)
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
    try:
        place = jvm.org.apache.kafka.common.TopicPartition(plan.topic, partition)
        consumer.assign([place])
        consumer.seek(place, offset)
        read = consumer.poll(jvm.java.time.Duration.ofSeconds(_POLL_S))
        for record in read.records(place):
            if record.offset() == offset:
                return tuple((h.key(), _bytes(h.value())) for h in record.headers().toArray())
    finally:
        consumer.close()
    raise ValueError(f"no record at partition {partition} offset {offset}")


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]

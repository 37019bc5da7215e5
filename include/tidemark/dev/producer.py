"""Writes sample records to Kafka, the way a careful producer does (S19).

The only code in Tidemark that writes to Kafka. No pipeline uses it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tidemark.core.errors import TidemarkError
from tidemark.dev.samples import SAMPLES, STEP_MS, Sample
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable

_log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""How long one request, or the delivery of one record, may take with all its retries, seconds."""

_REPORT_EVERY = 1_000
_NO_BROKER = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
}
# Not marked retriable in answers to admin requests, and over in a moment: a broker learns that it
# leads a new topic's partition a little later than it lists the topic.
_LEADER_SOON = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}

Progress = Callable[[int, int], None]
"""Told how many records of how many are acknowledged."""


def producer_settings(client: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Librdkafka settings of the producer; what matters is said, not left to defaults.

    Source: the configuration page of librdkafka 2.16.

    Args:
        client: Settings of the connection; `bootstrap.servers` and what security needs.
        timeout_s: How long a record may wait for its acknowledgement.
    """
    return {
        **client,
        # Every in-sync replica has the record before it counts as written, and a retry neither
        # doubles nor reorders it.
        "acks": "all",
        "enable.idempotence": "true",
        "delivery.timeout.ms": str(int(timeout_s * 1000)),
        # Keys go where a Java producer puts them (S16); records without a key to one partition,
        # so that the same seed fills the same partitions.
        "partitioner": "murmur2",
        "linger.ms": "20",
        # librdkafka prints what it is about to retry; what it gives up on reaches us as an error.
        "log_level": "0",
    }


def produce(
    client: Mapping[str, str],
    sample: str,
    *,
    records: int | None = None,
    seed: int = 1,
    base_ms: int | None = None,
    topic: str | None = None,
    progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> dict[int, int]:
    """Append sample records to their topic, which is made if it is missing.

    The first record's index is the number of offsets the topic has had so far, so one call after
    the other repeats no id, and the same calls on a new topic write the same records.

    Args:
        client: librdkafka settings of the connection.
        sample: A name in `SAMPLES`.
        records: How many; the sample's own default if None.
        seed: Chooses among the sample's possible records.
        base_ms: Timestamp of the first record; if None, such that the last one is now.
        topic: Another topic than the sample's own.
        progress: Told the acknowledged count from time to time, and at the end.
        timeout_s: How long to wait for one answer.

    Returns:
        Acknowledged records by partition; partitions that got none are not in it.

    Raises:
        KeyError: No such sample.
        KafkaUnavailable: No broker answered in time; some records may have been written.
        KafkaRefused: A broker said no.
    """
    chosen = SAMPLES[sample]
    count = chosen.default_records if records is None else records
    name = topic or chosen.name
    first_ms = int(time.time() * 1000) - count * STEP_MS if base_ms is None else base_ms
    admin = AdminClient({**client, "log_level": "0"})
    made = ensure_topic(admin, name, chosen.partitions, timeout_s=timeout_s)
    start = 0 if made else _offsets_so_far(admin, name, timeout_s)
    batch = chosen.records(seed=seed, start=start, count=count, base_ms=first_ms)
    producer = Producer(producer_settings(client, timeout_s=timeout_s))
    written = _Delivery(name, count, progress).send(producer, batch, timeout_s)
    _log.info("sample produced topic=%s start=%d records=%d", name, start, count)
    return written


def ensure_sample_topics(client: Mapping[str, str]) -> None:
    """Make the topic of every sample, so that pipelines over them find nothing instead of failing.

    Raises:
        KafkaUnavailable, KafkaRefused
    """
    admin = AdminClient({**client, "log_level": "0"})
    for sample in SAMPLES.values():
        ensure_topic(admin, sample.name, sample.partitions)


def ensure_topic(
    admin: AdminClient, topic: str, partitions: int, *, timeout_s: float = TIMEOUT_S
) -> bool:
    """Make a topic with the broker's default replication unless it exists.

    Returns:
        Whether it was made now.
    """
    request = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions)], request_timeout=timeout_s
    )
    try:
        request[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise _named(error.args[0], f"the creation of topic {topic!r}") from error
    return True


def _offsets_so_far(admin: AdminClient, topic: str, timeout_s: float) -> int:
    """The sum of the end offsets: grows with each record, and never shrinks by retention."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _sum_of_ends(admin, topic, timeout_s)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() not in _LEADER_SOON or time.monotonic() > deadline:
                raise _named(reason, f"the end offsets of {topic!r}") from error
        time.sleep(0.05)


def _sum_of_ends(admin: AdminClient, topic: str, timeout_s: float) -> int:
    described = admin.list_topics(topic, timeout=timeout_s).topics[topic]
    if described.error is not None:
        raise KafkaException(described.error)
    wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in described.partitions}
    answers = admin.list_offsets(wanted, request_timeout=timeout_s).values()
    return sum(answer.result().offset for answer in answers)


class _Delivery:
    """Counts what the brokers acknowledge; one use."""

    def __init__(self, topic: str, total: int, progress: Progress | None) -> None:
        self._topic = topic
        self._total = total
        self._progress = progress
        self._written: Counter[int] = Counter()
        self._acknowledged = 0
        self._failure: KafkaError | None = None

    def send(self, producer: Producer, batch: Iterable[Sample], timeout_s: float) -> dict[int, int]:
        for sample in batch:
            self._enqueue(producer, sample)
            producer.poll(0)
            if self._failure is not None:
                break
        left = producer.flush(timeout_s)
        if self._failure is not None:
            raise _named(self._failure, f"a record for topic {self._topic!r}")
        if left:
            raise KafkaUnavailable(
                operation=f"a record for topic {self._topic!r}",
                reason=f"{left} record(s) without an acknowledgement after {timeout_s:.0f} s",
            )
        self._report()
        return dict(sorted(self._written.items()))

    def _enqueue(self, producer: Producer, sample: Sample) -> None:
        while True:
            try:
                producer.produce(
                    self._topic,
                    key=sample.key,
                    value=sample.value,
                    headers=list(sample.headers),
                    timestamp=sample.timestamp_ms,
                    on_delivery=self._delivered,
                )
            except BufferError:
                # The local queue is full: make room by serving acknowledgements.
                producer.poll(0.1)
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or error
            return
        partition = message.partition()
        if partition is not None:
            self._written[partition] += 1
        self._acknowledged += 1
        if self._acknowledged % _REPORT_EVERY == 0:
            self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._acknowledged, self._total)


def _named(error: KafkaError, operation: str) -> TidemarkError:
    """Kafka's error as one of ours, by whether the same call can succeed later."""
    if error.retriable() or error.code() in _NO_BROKER | _LEADER_SOON:
        return KafkaUnavailable(operation=operation, reason=error.str())
    return KafkaRefused(
        operation=operation,
        reason=error.str(),
        needed="a principal with Create, Describe and Write on the topic",
    )

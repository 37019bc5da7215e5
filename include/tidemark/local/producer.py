"""Produces sample records, with the settings of a reliable producer (S19).

This module is the only code of Tidemark that writes records to Kafka; no pipeline uses it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tidemark.core.errors import TidemarkError
from tidemark.core.texts import counted
from tidemark.kafka.admin import AdminRequests
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable
from tidemark.local.samples import SAMPLES, STEP_MS, Sample

_log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""Longest duration of one request, or of one record's delivery with its retries, in seconds."""

_RIGHTS = "a principal with Create, Describe and Write on the topic"

_RECORDS_PER_REPORT = 1_000
_NO_BROKER_CODES = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
}
# Temporary, although admin answers do not mark them as retriable: a broker lists a new topic a
# moment before it leads the topic's partitions.
_NO_LEADER_CODES = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}

Progress = Callable[[int, int], None]
"""Called with the number of acknowledged records and the number of all records."""


def producer_settings(client: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return the librdkafka settings of the producer; important ones are explicit.

    Source: the configuration page of librdkafka 2.16.

    Args:
        client: Settings of the connection: `bootstrap.servers` and security.
        timeout_s: Longest wait for the acknowledgement of a record, in seconds.
    """
    return {
        **client,
        # All in-sync replicas have a record before it counts as written, and a retry neither
        # duplicates nor reorders records.
        "acks": "all",
        "enable.idempotence": "true",
        "delivery.timeout.ms": str(int(timeout_s * 1000)),
        # A key has the same partition as with a Java producer (S16). Records without a key go to
        # one partition, so that the same seed fills the same partitions.
        "partitioner": "murmur2",
        "linger.ms": "20",
        # librdkafka logs each retry; final failures reach this module as errors.
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
    """Append sample records to their topic; create the topic if it does not exist.

    The index of the first record is the number of offsets that the topic has had. So successive
    calls repeat no id, and the same calls on a new topic write the same records.

    Args:
        client: librdkafka settings of the connection.
        sample: A name in `SAMPLES`.
        records: Number of records; None for the sample's default.
        seed: Selects the random values of the records.
        base_ms: Timestamp of the first record, in ms; None makes the last record end now.
        topic: Name of the topic; None for the sample's own.
        progress: Called every 1,000 acknowledged records, and at the end.
        timeout_s: Longest wait for one answer, in seconds.

    Returns:
        Number of acknowledged records by partition; without partitions that got none.

    Raises:
        KeyError: The sample does not exist.
        KafkaUnavailable: No broker answered in time; some records may have been written.
        KafkaRefused: A broker refused the request.
    """
    chosen = SAMPLES[sample]
    count = chosen.default_records if records is None else records
    name = topic or chosen.name
    first_ms = int(time.time() * 1000) - count * STEP_MS if base_ms is None else base_ms
    requests = AdminRequests(client, needed=_RIGHTS)
    # The requests below do not name an unreachable cluster.
    answer = requests.admin.describe_cluster(request_timeout=timeout_s)
    requests.result("describe_cluster", "the cluster", answer)
    admin = requests.admin
    is_new = ensure_topic(admin, name, chosen.partitions, timeout_s=timeout_s)
    start = 0 if is_new else _sum_of_end_offsets(admin, name, timeout_s)
    batch = chosen.records(seed=seed, start=start, count=count, base_ms=first_ms)
    producer = Producer(producer_settings(client, timeout_s=timeout_s))
    written = _Delivery(name, count, progress).send(producer, batch, timeout_s)
    _log.info("sample produced topic=%s start=%d records=%d", name, start, count)
    return written


def ensure_sample_topics(client: Mapping[str, str]) -> None:
    """Create the topics of all samples, so that their pipelines find empty topics."""
    admin = AdminClient({**client, "log_level": "0"})
    for sample in SAMPLES.values():
        ensure_topic(admin, sample.name, sample.partitions)


def ensure_topic(
    admin: AdminClient, topic: str, partitions: int, *, timeout_s: float = TIMEOUT_S
) -> bool:
    """Create a topic with the broker's default replication, unless it exists.

    Returns:
        Whether this call created the topic.
    """
    request = admin.create_topics(
        [NewTopic(topic, num_partitions=partitions)], request_timeout=timeout_s
    )
    try:
        request[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise _named_error(error.args[0], f"the creation of topic {topic!r}") from error
    return True


def _sum_of_end_offsets(admin: AdminClient, topic: str, timeout_s: float) -> int:
    """Return the sum of the log end offsets, which grows with each record despite retention."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            described = admin.list_topics(topic, timeout=timeout_s).topics[topic]
            if described.error is not None:
                raise KafkaException(described.error)
            wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in described.partitions}
            answers = admin.list_offsets(wanted, request_timeout=timeout_s).values()
            return sum(answer.result().offset for answer in answers)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() not in _NO_LEADER_CODES or time.monotonic() > deadline:
                raise _named_error(reason, f"list_offsets of {topic!r}") from error
        time.sleep(0.05)


class _Delivery:
    """Sends one batch of records and counts the acknowledgements."""

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
            raise _named_error(self._failure, f"producing to topic {self._topic!r}")
        if left:
            raise KafkaUnavailable(
                operation=f"producing to topic {self._topic!r}",
                reason=f"{counted(left, 'record')} without an acknowledgement "
                f"after {timeout_s:.0f} s",
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
                # The local queue is full; acknowledgements free space in it.
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
        if self._acknowledged % _RECORDS_PER_REPORT == 0:
            self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._acknowledged, self._total)


def _named_error(error: KafkaError, operation: str) -> TidemarkError:
    """Return a transient error if the same call can succeed later, else a terminal error."""
    if error.retriable() or error.code() in _NO_BROKER_CODES | _NO_LEADER_CODES:
        return KafkaUnavailable(operation=operation, reason=error.str())
    return KafkaRefused(
        operation=operation,
        reason=error.str(),
        needed=_RIGHTS,
    )

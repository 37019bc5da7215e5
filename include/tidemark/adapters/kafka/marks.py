"""Kafka's marks and topic ids through librdkafka's AdminClient: no consumer, no group (I6)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import (
    IsolationLevel as RdIsolationLevel,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    OffsetSpec,
    ResourceType,
)

from tidemark.core.marks import IsolationLevel, Marks, TopicMarks
from tidemark.errors import KafkaRefused, KafkaUnavailable, NoTopicId, TopicMissing

_ISOLATION = {
    IsolationLevel.READ_COMMITTED: RdIsolationLevel.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: RdIsolationLevel.READ_UNCOMMITTED,
}

REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError._SSL,
}
"""Codes with which a broker, or the client before it, says no for good."""

_REFUSAL_GRACE_S = 2.0
"""How long a request may go on after a broker said no: another of the list may answer it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

_NO_ID = {"", "None", "AAAAAAAAAAAAAAAAAAAAAA"}
"""What librdkafka says where a broker tells no topic id: nothing, or a UUID of zeros."""

T = TypeVar("T")


class KafkaMarkReader:
    """Reads marks with four requests, however many partitions there are.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: How long one request may take before it counts as unanswered.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = 30.0) -> None:
        # Why a connection failed is told to the callback only; requests just time out.
        self._refusals: list[str] = []
        self._timeout = timeout_seconds
        self._config = config
        self._admin = self._connect()

    def _connect(self) -> AdminClient:
        """A client that knows nothing yet: an old one may wait for a node that is dead by now."""
        try:
            return AdminClient(
                {
                    **self._config,
                    # librdkafka prints each lost connection; the callback hears of it anyway.
                    "log_level": 0,
                    "error_cb": self._note,
                }
            )
        except KafkaException as raised:
            raise KafkaRefused(
                operation="to be asked, because of the client's own settings",
                reason=raised.args[0].str(),
                needed="settings that librdkafka takes",
            ) from raised

    def topic_marks(self, topic: str, isolation_level: IsolationLevel) -> TopicMarks:
        """Marks of every partition, and the topic's identity.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        self._refusals.clear()
        self._admin = self._connect()
        cluster_id, topic_id, partitions = self._describe(topic)
        # Both are asked before either is waited for.
        asked = [
            self._ask_offsets(topic, partitions, spec, isolation_level)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        ]
        lows, ends = (self._listed(topic, futures) for futures in asked)
        return TopicMarks(
            cluster_id=cluster_id,
            topic=topic,
            topic_id=topic_id,
            isolation_level=isolation_level,
            partitions={
                p: Marks(low=lows[p].offset, end=ends[p].offset, leader_epoch=ends[p].leader_epoch)
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
        self._refusals.clear()
        self._admin = self._connect()
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
        self._refusals.clear()
        self._admin = self._connect()
        resource = ConfigResource(ResourceType.TOPIC, topic)
        asked = self._admin.describe_configs([resource], request_timeout=self._timeout)
        try:
            settings = self._answer("describe_configs", topic, asked[resource])
        except KafkaRefused:
            return None
        milliseconds = int(settings["retention.ms"].value)
        if milliseconds < 0 or "delete" not in settings["cleanup.policy"].value:
            return None
        return milliseconds * _MS

    def _describe(self, topic: str) -> tuple[str, str, list[int]]:
        cluster = self._admin.describe_cluster(request_timeout=self._timeout)
        topics = self._admin.describe_topics(
            TopicCollection([topic]), request_timeout=self._timeout
        )
        described = self._answer("describe_topics", topic, topics[topic])
        cluster_id = self._answer("describe_cluster", topic, cluster).cluster_id
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
        futures: Mapping[TopicPartition, Future[ListOffsetsResultInfo]] = self._admin.list_offsets(
            {TopicPartition(topic, p): spec for p in partitions},
            isolation_level=_ISOLATION[isolation_level],
            request_timeout=self._timeout,
        )
        return futures

    def _listed(
        self, topic: str, futures: Mapping[TopicPartition, Future[ListOffsetsResultInfo]]
    ) -> Mapping[int, ListOffsetsResultInfo]:
        listed = {
            place.partition: self._answer("list_offsets", topic, future)
            for place, future in futures.items()
        }
        for partition, info in listed.items():
            if info.offset == OFFSET_INVALID:
                # Where some leaders answer and others do not in time, librdkafka tells no error
                # of these: the offset that it began with is left as it is.
                raise KafkaUnavailable(
                    operation=f"list_offsets of {topic}[{partition}]",
                    reason="no answer from the partition's leader in time",
                )
        return listed

    def _note(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self._refusals.append(error.str())

    def _answer(self, operation: str, topic: str, future: Future[T]) -> Any:
        give_up = None
        while True:
            try:
                return future.result(timeout=0.1)
            except KafkaException as raised:
                self._admin.poll(0)
                raise self._named(operation, topic, raised.args[0]) from raised
            except TimeoutError:
                # Only this calls the callback. librdkafka asks again until the request times out,
                # also after a wrong password.
                self._admin.poll(0)
                if self._refusals and give_up is None:
                    give_up = time.monotonic() + _REFUSAL_GRACE_S
                if give_up is not None and time.monotonic() > give_up:
                    raise self._refused(operation, topic, "no answer") from None

    def _named(
        self, operation: str, topic: str, error: KafkaError
    ) -> TopicMissing | KafkaRefused | KafkaUnavailable:
        if error.code() in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        ):
            return TopicMissing(topic=topic)
        if error.code() in REFUSALS or self._refusals:
            return self._refused(operation, topic, error.str())
        return KafkaUnavailable(operation=f"{operation} of {topic}", reason=error.str())

    def _refused(self, operation: str, topic: str, otherwise: str) -> KafkaRefused:
        reasons = dict.fromkeys(self._refusals) or [otherwise]
        return KafkaRefused(operation=f"{operation} of {topic}", reason="; ".join(reasons))


def _milliseconds(moment: datetime) -> int:
    """The first millisecond at or after a moment; negative ones mean something else to Kafka."""
    return max(0, -((_EPOCH - moment) // _MS))


def consumer_groups(config: Mapping[str, Any]) -> list[str]:
    """Every consumer group that the cluster knows: none of them is ours (S1)."""
    # Named, because a client that is collected takes the answers it waits for with it.
    admin = AdminClient({**config, "log_level": 0})
    found = admin.list_consumer_groups(request_timeout=30).result(timeout=60)
    return sorted(group.group_id for group in found.valid)

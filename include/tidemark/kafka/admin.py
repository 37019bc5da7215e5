"""Requests of librdkafka's AdminClient, and the named errors for their failures."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from tidemark.core.errors import TidemarkError
from tidemark.core.texts import similar_names
from tidemark.kafka.errors import (
    KafkaFailure,
    KafkaRefused,
    KafkaUnavailable,
    TopicMissing,
)

REFUSAL_CODES = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError._SSL,
    }
)
"""Codes of the broker or the client for a refusal that a retry does not change."""

MISSING_TOPIC_CODES = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    # The name of the topic is invalid.
    KafkaError.TOPIC_EXCEPTION,
}
"""Codes of the broker or the client for a topic that does not exist."""

_NO_TOPIC_ID = {"", "None", "AAAAAAAAAAAAAAAAAAAAAA"}
"""Values of librdkafka for a broker that returns no topic id: nothing, or a UUID of zeros."""

REFUSAL_GRACE_S = 2.0
"""Seconds that a request continues after one broker refused it: another broker may answer it."""

CONNECT_TIMEOUT_S = 8.0
"""Seconds after which a client without any connection stops trying."""
CONNECT_GRACE_S = 3.0
"""Seconds that a client still tries to connect after all bootstrap servers failed: one may be
restarting."""

_STATISTICS_MS = 250
"""Interval of the statistics, which alone show whether a client has a connection."""
_VARYING = re.compile(r"^\S+/\w+: | \(after \d+ms in state .*\)$")
"""The parts of librdkafka's text about a failed connection that differ from one to the next."""

_CLUSTER = "the cluster"

T = TypeVar("T")


def client_settings_error(raised: KafkaException) -> KafkaRefused:
    """Return the error for a configuration that librdkafka does not accept."""
    return KafkaRefused(
        operation="the client configuration",
        reason=raised.args[0].str(),
        needed="settings that librdkafka accepts",
    )


def topic_id_of(described: Any) -> str | None:
    """Return the topic id of librdkafka's description of a topic; None if brokers return none."""
    # librdkafka formats a UUID in plain base64; Kafka's own tools use the URL-safe alphabet.
    topic_id = str(described.topic_id).replace("+", "-").replace("/", "_")
    return None if topic_id in _NO_TOPIC_ID else topic_id


def silent_leader(topic: str, partition: int) -> KafkaUnavailable:
    """Return the error for an offset that kept its initial value, OFFSET_INVALID.

    If only some leaders answer `list_offsets` in time, librdkafka reports no error for the others.
    """
    return KafkaUnavailable(
        operation=f"list_offsets of {topic}[{partition}]",
        reason="no answer from the partition's leader in time",
    )


class KafkaErrorMapper:
    """Maps the error codes of one client to named errors.

    librdkafka reports the reason of a failed connection only to `error_cb`; the request itself just
    times out. So this class also records the refusals and failures that the callback receives.

    Args:
        refusal_codes: Codes that mean a refusal.
        needed: What the operation requires; None for the rights that reading a topic needs.
    """

    def __init__(
        self, refusal_codes: Collection[int] = REFUSAL_CODES, needed: str | None = None
    ) -> None:
        self.refusals: list[str] = []
        self.connection_failures: set[str] = set()
        self._refusal_codes = refusal_codes
        self._needed = {} if needed is None else {"needed": needed}

    def on_error(self, error: KafkaError) -> None:
        """Record a refusal or a failed connection; the client's `error_cb`."""
        if error.code() in self._refusal_codes:
            self.refusals.append(error.str())
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.connection_failures.add(_VARYING.sub("", error.str()))

    def named_error(self, operation: str, topic: str, error: KafkaError) -> TidemarkError:
        """Return the named error for a code, considering the recorded refusals."""
        if error.code() in MISSING_TOPIC_CODES:
            return TopicMissing(topic=topic)
        if error.code() in self._refusal_codes or self.refusals:
            return self.refusal(operation, topic, error.str())
        return KafkaUnavailable(operation=f"{operation} of {topic}", reason=error.str())

    def refusal(self, operation: str, topic: str, default: str) -> KafkaRefused:
        """Return a refusal with all recorded reasons, or with the default if there are none."""
        reasons = dict.fromkeys(self.refusals) or [default]
        return KafkaRefused(
            operation=f"{operation} of {topic}", reason="; ".join(reasons), **self._needed
        )


class AdminRequests(KafkaErrorMapper):
    """An AdminClient whose requests raise `KafkaFailure`.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        refusal_codes: Codes that mean a refusal.
        needed: What the requests require; None for the rights that reading a topic needs.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        refusal_codes: Collection[int] = REFUSAL_CODES,
        needed: str | None = None,
    ) -> None:
        super().__init__(refusal_codes, needed)
        self._config = config
        self.connect()

    def connect(self) -> None:
        """Replace the client by a new one: an old client may wait for a node that has ended."""
        self.refusals.clear()
        self.connection_failures.clear()
        self._requested: Mapping[TopicPartition, Future[ListOffsetsResultInfo]] = {}
        # None until the first statistics.
        self._has_connected: bool | None = None
        self._connect_deadline = time.monotonic() + CONNECT_TIMEOUT_S
        try:
            self.admin = AdminClient(
                {
                    **self._config,
                    # librdkafka logs each lost connection, and also passes it to the callback.
                    "log_level": 0,
                    "error_cb": self.on_error,
                    "stats_cb": self._on_statistics,
                    "statistics.interval.ms": _STATISTICS_MS,
                }
            )
        except KafkaException as raised:
            raise client_settings_error(raised) from raised

    def list_offsets(
        self, places: Collection[TopicPartition], spec: OffsetSpec, timeout: float, **options: Any
    ) -> Mapping[TopicPartition, Future[ListOffsetsResultInfo]]:
        """Request one offset of each partition.

        Wait for the results before the next call. librdkafka looks up the leaders in this thread,
        and again in its own thread when metadata arrives. If the metadata of one request arrives
        while the next one starts, both threads free the same memory, and the process ends with
        SIGSEGV. So a client that still waits for an answer is replaced.

        Args:
            places: The partitions.
            spec: Which offset.
            timeout: Longest duration, in seconds.
            options: Further arguments of `AdminClient.list_offsets`.
        """
        if not all(future.done() for future in self._requested.values()):
            self.connect()
        self._requested = self.admin.list_offsets(
            dict.fromkeys(places, spec), request_timeout=timeout, **options
        )
        return self._requested

    def topic_names(self, timeout: float) -> list[str]:
        """Return the names of the topics that this principal may describe."""
        try:
            return list(self.admin.list_topics(timeout=timeout).topics)
        except KafkaException as raised:
            raise self.named_error("list_topics", _CLUSTER, raised.args[0]) from raised

    def with_suggestions(self, missing: TopicMissing, timeout: float) -> TopicMissing:
        """Return the error of a missing topic with similar names of the cluster, if it lists any.

        Args:
            missing: The error.
            timeout: Longest duration of the request, in seconds.
        """
        similar: tuple[str, ...] = ()
        with suppress(KafkaFailure):
            similar = similar_names(missing.topic, self.topic_names(timeout))
        return TopicMissing(topic=missing.topic, similar=similar)

    def result(self, operation: str, topic: str, future: Future[T]) -> Any:
        """Wait for a request and return its result."""
        deadline = None
        while True:
            try:
                return future.result(timeout=0.1)
            except KafkaException as raised:
                self.admin.poll(0)
                raise self.named_error(operation, topic, raised.args[0]) from raised
            except TimeoutError:
                # Only `poll` calls the callback. librdkafka repeats the request until the request
                # times out, even after a wrong password.
                self.admin.poll(0)
                if self.refusals and deadline is None:
                    deadline = time.monotonic() + REFUSAL_GRACE_S
                if deadline is not None and time.monotonic() > deadline:
                    raise self.refusal(operation, topic, "no answer") from None
                if self._is_unreachable and time.monotonic() > self._connect_deadline:
                    raise self._unreachable(operation) from None

    def on_error(self, error: KafkaError) -> None:
        """Record a refusal or a failed connection, and whether all brokers failed."""
        super().on_error(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            down = time.monotonic() + CONNECT_GRACE_S
            self._connect_deadline = min(self._connect_deadline, down)

    def named_error(self, operation: str, topic: str, error: KafkaError) -> TidemarkError:
        """Return the named error for a code; a request that found no broker has its own error."""
        named = super().named_error(operation, topic, error)
        is_unanswered = isinstance(named, KafkaUnavailable) and self._is_unreachable
        return self._unreachable(operation) if is_unanswered else named

    @property
    def _is_unreachable(self) -> bool:
        return self._has_connected is False and not self.refusals

    def _unreachable(self, operation: str) -> KafkaUnavailable:
        # The error is the same for all topics of the cluster.
        return KafkaUnavailable(
            operation=operation,
            reason="; ".join(sorted(self.connection_failures)) or "no answer",
            addresses=str(self._config["bootstrap.servers"]),
        )

    def _on_statistics(self, text: str) -> None:
        states = [broker["state"] for broker in json.loads(text)["brokers"].values()]
        self._has_connected = self._has_connected or "UP" in states

"""Requests of librdkafka's AdminClient, and the names of what goes wrong with them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.core.errors import TidemarkError
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable, TopicMissing

REFUSALS = frozenset(
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
"""Codes with which a broker, or the client before it, says no for good."""

MISSING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
"""Codes with which a broker, or the client before it, says that there is no such topic."""

REFUSAL_GRACE_S = 2.0
"""How long a request may go on after a broker said no: another of the list may answer it."""

T = TypeVar("T")


def client_settings_error(raised: KafkaException) -> KafkaRefused:
    """The error of a client that librdkafka does not make."""
    return KafkaRefused(
        operation="to be asked, because of the client's own settings",
        reason=raised.args[0].str(),
        needed="settings that librdkafka takes",
    )


class KafkaErrorMapper:
    """Names what goes wrong with a client, also what only its `error_cb` hears.

    Args:
        refusals: Codes that mean no.
        needed: What a broker that refuses wants; what reading a topic needs if None.
    """

    def __init__(self, refusals: Collection[int] = REFUSALS, needed: str | None = None) -> None:
        # Why a connection failed is told to the callback only; requests just time out.
        self.told: list[str] = []
        self._refusals = refusals
        self._needed = {} if needed is None else {"needed": needed}

    def note(self, error: KafkaError) -> None:
        """The callback."""
        if error.code() in self._refusals:
            self.told.append(error.str())

    def named(self, operation: str, topic: str, error: KafkaError) -> TidemarkError:
        """The error that a caller can act on."""
        if error.code() in MISSING:
            return TopicMissing(topic=topic)
        if error.code() in self._refusals or self.told:
            return self.refused(operation, topic, error.str())
        return KafkaUnavailable(operation=f"{operation} of {topic}", reason=error.str())

    def refused(self, operation: str, topic: str, otherwise: str) -> KafkaRefused:
        """A no, with all the reasons that were heard."""
        reasons = dict.fromkeys(self.told) or [otherwise]
        return KafkaRefused(
            operation=f"{operation} of {topic}", reason="; ".join(reasons), **self._needed
        )


class AdminRequests(KafkaErrorMapper):
    """A client, and waiting for its answers.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        refusals: As of `KafkaErrorMapper`.
        needed: As of `KafkaErrorMapper`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        refusals: Collection[int] = REFUSALS,
        needed: str | None = None,
    ) -> None:
        super().__init__(refusals, needed)
        self._config = config
        self.connect()

    def connect(self) -> None:
        """Have a client that knows nothing yet: an old one may wait for a node that is dead by now.

        Raises:
            KafkaRefused: librdkafka does not take the configuration.
        """
        self.told.clear()
        try:
            self.admin = AdminClient(
                {
                    **self._config,
                    # librdkafka prints each lost connection; the callback hears of it anyway.
                    "log_level": 0,
                    "error_cb": self.note,
                }
            )
        except KafkaException as raised:
            raise client_settings_error(raised) from raised

    def answer(self, operation: str, topic: str, future: Future[T]) -> Any:
        """What a request came to.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        give_up = None
        while True:
            try:
                return future.result(timeout=0.1)
            except KafkaException as raised:
                self.admin.poll(0)
                raise self.named(operation, topic, raised.args[0]) from raised
            except TimeoutError:
                # Only this calls the callback. librdkafka asks again until the request times out,
                # also after a wrong password.
                self.admin.poll(0)
                if self.told and give_up is None:
                    give_up = time.monotonic() + REFUSAL_GRACE_S
                if give_up is not None and time.monotonic() > give_up:
                    raise self.refused(operation, topic, "no answer") from None

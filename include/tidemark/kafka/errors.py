"""Errors of Kafka connections, topics and consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tidemark.core.errors import CaseTexts, TerminalError, TidemarkError, TransientError


class InvalidConnection(CaseTexts, TerminalError):
    """A connection is not defined, or its definition is invalid.

    The texts never contain a value of a connection, because some values are secrets.
    """

    @classmethod
    def of_undefined(cls, connection: str) -> Self:
        """The spec names a connection that is not defined."""
        return cls(
            finding=f"Connection {connection!r} is not defined.",
            advice=(
                "Define the connection in Airflow; for the command line and before `make up`, "
                f"export {_variable(connection)} in JSON form (docs/how-to/connections.md)."
            ),
        )

    @classmethod
    def of_definition(cls, connection: str, rule: str, seen: str) -> Self:
        """The definition is invalid.

        Args:
            connection: Connection id.
            rule: The rule that the definition breaks.
            seen: The part of the definition that breaks the rule, by its key.
        """
        return cls(
            finding=f"Connection {connection!r} is invalid.",
            needed=rule,
            seen=seen,
            advice="Correct the connection's extra; docs/how-to/connections.md lists the keys.",
        )


class EmbeddedBrokerStopped(InvalidConnection):
    """The connection is undefined, and its default, the embedded broker, does not run."""

    @classmethod
    def of_default(cls, connection: str) -> Self:
        """The connection whose default is the embedded broker is undefined."""
        return cls(
            finding=(
                f"The embedded broker is not running, and connection {connection!r} is not defined."
            ),
            advice=(
                "Start the broker with `tidemark broker start`, or with Airflow and Spark by "
                "`make up`. To read another Kafka, define the connection "
                f"({_variable(connection)}, docs/how-to/connections.md)."
            ),
        )


def _variable(connection: str) -> str:
    """Return the environment variable of a connection."""
    return f"AIRFLOW_CONN_{connection.upper()}"


class KafkaFailure(TidemarkError):
    """Base class: Kafka did not answer a request, refused it, or lacks its topic or offsets."""


@dataclass(kw_only=True, eq=False)
class KafkaUnavailable(KafkaFailure, TransientError):
    """No broker answered in time, or a broker returned a retriable error.

    Attributes:
        operation: The operation, as a noun phrase such as "list_offsets of prices".
        reason: What the client observed.
        addresses: The bootstrap servers, as in the connection, if none of them accepted a
            connection in time; otherwise empty.
    """

    operation: str
    reason: str
    addresses: str = ""

    problem = "{failure}: {reason}."
    fix = "{checks}"

    @property
    def failure(self) -> str:
        """The failed operation, as a main clause."""
        if self.addresses:
            return f"No Kafka broker can be reached at {self.addresses} ({self.operation})"
        return f"Kafka is unavailable: {self.operation} failed"

    @property
    def checks(self) -> str:
        """The remedy, as sentences."""
        if self.addresses:
            return (
                "Check the hosts, the ports and `security.protocol` of the connection, that the "
                "brokers run, and that no firewall blocks them. `tidemark broker start` starts the "
                "embedded broker."
            )
        return "Check that the brokers run and can be reached, then run the same command again."


@dataclass(kw_only=True, eq=False)
class KafkaRefused(KafkaFailure, TerminalError):
    """A broker permanently refused a request: credentials, rights, or an unsupported request.

    Attributes:
        operation: The operation, as a noun phrase such as "list_offsets of prices".
        reason: The broker's or the client's message.
        needed: What the operation requires.
    """

    operation: str
    reason: str
    needed: str = "a principal with Describe and Read on the topic"

    problem = "Kafka refused {operation}: {reason}."
    fix = "Correct the connection's credentials or the topic's ACLs; the operation needs {needed}."


@dataclass(kw_only=True, eq=False)
class TopicMissing(KafkaFailure, TerminalError):
    """The topic does not exist on the cluster.

    Attributes:
        topic: The topic.
        similar: Topics of the cluster with a similar name.
    """

    topic: str
    similar: tuple[str, ...] = ()

    problem = "Topic {topic!r} does not exist, or this principal may not describe it.{suggestion}"
    fix = (
        "Create the topic (`tidemark topics create {topic} --partitions N`), correct its name in "
        "the command or in the spec, or grant Describe on the topic."
    )

    @property
    def suggestion(self) -> str:
        """A sentence with the similar names, if any."""
        return f" Did you mean {' or '.join(self.similar)}?" if self.similar else ""


class InvalidTopic(CaseTexts, KafkaFailure, TerminalError):
    """A topic cannot be created: it exists, or the brokers do not accept it."""

    @classmethod
    def of_existing(cls, topic: str) -> Self:
        """The topic exists."""
        return cls(
            finding=f"Topic {topic!r} already exists.",
            advice=(
                f"Use the topic (`tidemark topics describe {topic}` shows it), or choose another "
                "name."
            ),
        )

    @classmethod
    def of_refusal(cls, topic: str, reason: str) -> Self:
        """The brokers do not accept the name, the number of partitions or a setting."""
        return cls(
            finding=f"The brokers do not accept the new topic {topic!r}: {reason}.",
            advice=(
                "Correct the name, the number of partitions or the settings: `tidemark topics "
                "--help`."
            ),
        )


@dataclass(kw_only=True, eq=False)
class NoTopicId(KafkaFailure, TerminalError):
    """The brokers return no topic ids, so a recreated topic cannot be detected."""

    topic: str

    problem = "The brokers return no id for topic {topic!r}."
    fix = (
        "Upgrade the brokers to Kafka 2.8 or later: without topic ids Tidemark cannot detect a "
        "recreated topic."
    )


@dataclass(kw_only=True, eq=False)
class OffsetsDeleted(KafkaFailure, TransientError):
    """An offset left the log during a read: it was deleted, or the log was truncated."""

    topic: str
    partition: int
    offset: int

    problem = "Offset {offset} of {topic}[{partition}] was removed from the log during the read."
    fix = "Run the same command again; it starts from the current watermarks."


@dataclass(kw_only=True, eq=False)
class GroupActive(TerminalError):
    """A consumer group has members, so only they can commit its offsets."""

    group: str
    reason: str

    problem = "The offsets of consumer group {group!r} cannot be set: {reason}."
    fix = "Export to a group without consumers, or stop its consumers first."

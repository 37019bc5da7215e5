"""Errors of Kafka connections, topics and consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TidemarkError, TransientError


@dataclass(kw_only=True, eq=False)
class UnknownConnection(TerminalError):
    """The spec names a connection that is not defined."""

    connection: str

    problem = "Connection {connection!r} is not defined."
    fix = (
        "Define the connection in Airflow; for the command line and before `make up`, export "
        "{variable} in JSON form (docs/how-to/connections.md)."
    )

    @property
    def variable(self) -> str:
        """The environment variable of the connection."""
        return f"AIRFLOW_CONN_{self.connection.upper()}"


@dataclass(kw_only=True, eq=False)
class EmbeddedBrokerStopped(UnknownConnection):
    """The connection is undefined, and its default, the embedded broker, does not run."""

    problem = "The embedded broker is not running, and connection {connection!r} is not defined."
    fix = (
        "Start the broker with `tidemark broker start`, or with Airflow and Spark by `make up`. "
        "To read another Kafka, define the connection ({variable}, docs/how-to/connections.md)."
    )


@dataclass(kw_only=True, eq=False)
class InvalidConnection(TerminalError):
    """The definition of a connection is invalid.

    Attributes:
        connection: Connection id.
        rule: The rule that the definition breaks.
        seen: The part of the definition that breaks it, by its key. Never contains a value of the
            connection, because some values are secrets.
    """

    connection: str
    rule: str
    seen: str

    problem = "Connection {connection!r} is invalid."
    expected = "{rule}"
    actual = "{seen}"
    fix = "Correct the connection's extra; docs/how-to/connections.md lists the keys."


class KafkaFailure(TidemarkError):
    """Base class: Kafka did not answer a request, refused it, or lacks its topic or offsets."""


@dataclass(kw_only=True, eq=False)
class KafkaUnavailable(KafkaFailure, TransientError):
    """No broker answered in time, or a broker returned a retriable error.

    Attributes:
        operation: The operation, as a noun phrase such as "list_offsets of prices".
        reason: What the client observed.
    """

    operation: str
    reason: str

    problem = "Kafka is unavailable: {operation} failed: {reason}."
    fix = "Check that the brokers run and can be reached, then run the same command again."


@dataclass(kw_only=True, eq=False)
class KafkaUnreachable(KafkaUnavailable):
    """No connection to any bootstrap server could be established in time.

    Attributes:
        addresses: The bootstrap servers, as in the connection.
    """

    addresses: str

    problem = "No Kafka broker can be reached at {addresses} ({operation}): {reason}."
    fix = (
        "Check the hosts, the ports and `security.protocol` of the connection, that the brokers "
        "run, and that no firewall blocks them. `tidemark broker start` starts the embedded broker."
    )


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


@dataclass(kw_only=True, eq=False)
class TopicExists(KafkaFailure, TerminalError):
    """The topic to create exists."""

    topic: str

    problem = "Topic {topic!r} already exists."
    fix = "Use the topic (`tidemark topics describe {topic}` shows it), or choose another name."


@dataclass(kw_only=True, eq=False)
class InvalidTopic(KafkaFailure, TerminalError):
    """The brokers do not accept a new topic."""

    topic: str
    reason: str

    problem = "The brokers do not accept the new topic {topic!r}: {reason}."
    fix = "Correct the name, the number of partitions or the settings: `tidemark topics --help`."


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

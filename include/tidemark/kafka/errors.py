"""Errors of Kafka connections, topics and consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class UnknownConnection(TerminalError):
    """A connection id that resolves to nothing."""

    connection: str

    problem = "Connection {connection!r} is not defined."
    expected = "{_expected}"
    actual = "no such variable"
    fix = (
        "Define the connection in Airflow, or export the variable for the command line "
        "(docs/connections.md); for a broker to try things with: `tidemark broker start`."
    )

    @property
    def _expected(self) -> str:
        return f"the environment variable AIRFLOW_CONN_{self.connection.upper()} in JSON form"


@dataclass(kw_only=True, eq=False)
class InvalidConnection(TerminalError):
    """A connection that is there and cannot be used. Never carries a value, only keys."""

    connection: str
    rule: str
    seen: str

    problem = "Connection {connection!r} cannot be used."
    expected = "{rule}"
    actual = "{seen}"
    fix = "Correct the connection's extra; docs/connections.md lists the keys."


@dataclass(kw_only=True, eq=False)
class KafkaUnavailable(TransientError):
    """No broker answered, or a broker asked to be called again."""

    operation: str
    reason: str

    problem = "Kafka did not answer {operation}."
    expected = "an answer in time"
    actual = "{reason}"
    fix = "Check that the brokers are up and reachable, then run the same command again."


@dataclass(kw_only=True, eq=False)
class KafkaRefused(TerminalError):
    """A broker answered no: credentials, rights, or a request it does not know."""

    operation: str
    reason: str
    needed: str = "a principal with Describe and Read on the topic"

    problem = "Kafka refused {operation}."
    expected = "{needed}"
    actual = "{reason}"
    fix = "Correct the connection's credentials or the topic's ACLs."


@dataclass(kw_only=True, eq=False)
class TopicMissing(TerminalError):
    """The pipeline's topic is not on the cluster."""

    topic: str

    problem = "Topic {topic!r} does not exist, or this principal may not describe it."
    expected = "an existing topic"
    actual = "none of that name"
    fix = "Create the topic, correct the spec's topic, or grant Describe on it."


@dataclass(kw_only=True, eq=False)
class NoTopicId(TerminalError):
    """A broker that tells no topic ids: a remade topic would look like the old one."""

    topic: str

    problem = "The cluster does not tell the id of topic {topic!r}."
    expected = "a topic id (Kafka 2.8 and later)"
    actual = "none"
    fix = "Upgrade the brokers: without topic ids a remade topic cannot be told from the old one."


@dataclass(kw_only=True, eq=False)
class OffsetsDeleted(TransientError):
    """Kafka deleted offsets while they were read."""

    topic: str
    partition: int
    offset: int

    problem = "{topic}[{partition}] changed while it was read."
    expected = "offset {offset} inside the log"
    actual = "a log that begins after it, or ends before it"
    fix = "Run the same command again: it starts from the watermarks of then."


@dataclass(kw_only=True, eq=False)
class GroupActive(TerminalError):
    """A consumer group whose offsets are its members' to commit."""

    group: str
    reason: str

    problem = "The offsets of consumer group {group!r} cannot be set."
    expected = "a group without members"
    actual = "{reason}"
    fix = (
        "Export to a group that no consumer has, or stop its consumers first (docs/runbook.md, "
        "GroupActive)."
    )

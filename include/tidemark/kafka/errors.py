"""Errors of Kafka connections, topics and consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class UnknownConnection(TerminalError):
    """A connection id that resolves to nothing."""

    connection: str

    def what(self) -> str:
        return f"connection {self.connection!r} is not defined"

    def expected(self) -> str:
        return f"the environment variable AIRFLOW_CONN_{self.connection.upper()} in JSON form"

    def found(self) -> str:
        return "no such variable"

    def remedy(self) -> str:
        return (
            "define the connection in Airflow, or export the variable for the command line "
            "(docs/connections.md); for a broker to try things with: `tidemark broker start`"
        )


@dataclass(kw_only=True, eq=False)
class InvalidConnection(TerminalError):
    """A connection that is there and cannot be used. Never carries a value, only keys."""

    connection: str
    rule: str
    problem: str

    def what(self) -> str:
        return f"connection {self.connection!r} cannot be used"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return self.problem

    def remedy(self) -> str:
        return "correct the connection's extra; docs/connections.md lists the keys"


@dataclass(kw_only=True, eq=False)
class KafkaUnavailable(TransientError):
    """No broker answered, or a broker asked to be called again."""

    operation: str
    reason: str

    def what(self) -> str:
        return f"Kafka did not answer {self.operation}"

    def expected(self) -> str:
        return "an answer in time"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "check that the brokers are up and reachable, then run the same command again"


@dataclass(kw_only=True, eq=False)
class KafkaRefused(TerminalError):
    """A broker answered no: credentials, rights, or a request it does not know."""

    operation: str
    reason: str
    needed: str = "a principal with Describe and Read on the topic"

    def what(self) -> str:
        return f"Kafka refused {self.operation}"

    def expected(self) -> str:
        return self.needed

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "correct the connection's credentials or the topic's ACLs"


@dataclass(kw_only=True, eq=False)
class TopicMissing(TerminalError):
    """The pipeline's topic is not on the cluster."""

    topic: str

    def what(self) -> str:
        return f"topic {self.topic!r} does not exist, or this principal may not describe it"

    def expected(self) -> str:
        return "an existing topic"

    def found(self) -> str:
        return "none of that name"

    def remedy(self) -> str:
        return "create the topic, correct the spec's topic, or grant Describe on it"


@dataclass(kw_only=True, eq=False)
class NoTopicId(TerminalError):
    """A broker that tells no topic ids: a remade topic would look like the old one."""

    topic: str

    def what(self) -> str:
        return f"the cluster does not tell the id of topic {self.topic!r}"

    def expected(self) -> str:
        return "a topic id (Kafka 2.8 and later)"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return (
            "upgrade the brokers: without topic ids a remade topic cannot be told from the old one"
        )


@dataclass(kw_only=True, eq=False)
class OffsetsDeleted(TransientError):
    """Kafka deleted offsets while they were read."""

    topic: str
    partition: int
    offset: int

    def what(self) -> str:
        return f"{self.topic}[{self.partition}] changed while it was read"

    def expected(self) -> str:
        return f"offset {self.offset} inside the log"

    def found(self) -> str:
        return "a log that begins after it, or ends before it"

    def remedy(self) -> str:
        return "run the same command again: it starts from the marks of then"


@dataclass(kw_only=True, eq=False)
class GroupActive(TerminalError):
    """A consumer group whose offsets are its members' to commit."""

    group: str
    reason: str

    def what(self) -> str:
        return f"the offsets of consumer group {self.group!r} cannot be set"

    def expected(self) -> str:
        return "a group without members"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "export to a group that no consumer has, or stop its consumers first "
            "(docs/runbook.md, GroupActive)"
        )

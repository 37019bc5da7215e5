"""A Kafka cluster as its brokers describe it: brokers, topics, partitions and settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidemark.core.errors import TidemarkError
from tidemark.core.plain import plain, record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """One broker, by the address that it advertises to this client.

    Attributes:
        id: Kafka's `node.id`.
        host: Host name.
        port: Port.
        rack: Rack; None if the broker has none.
    """

    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition.

    Attributes:
        number: Partition number.
        leader: Id of the leader; None for a leaderless partition.
        replicas: Ids of the brokers with a replica, the preferred leader first.
        isr: Ids of the brokers with a replica in sync.
        first: Low watermark; None if it was not read.
        end: High watermark, the offset after the last record; None if it was not read.
    """

    number: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    first: int | None = None
    end: int | None = None

    @property
    def leaderless(self) -> bool:
        """Whether no broker leads the partition, so that no client can read or write it."""
        return self.leader is None

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return len(self.isr) < len(self.replicas)

    @property
    def records(self) -> int | None:
        """Upper bound of the records in the log: gaps count too. None if it was not read."""
        return None if self.first is None or self.end is None else self.end - self.first

    def as_record(self) -> dict[str, Any]:
        """Return the partition as plain values."""
        return {
            "partition": self.number,
            "leader": self.leader,
            "replicas": list(self.replicas),
            "isr": list(self.isr),
            "first": self.first,
            "end": self.end,
            "records": self.records,
            "under_replicated": self.under_replicated,
            "leaderless": self.leaderless,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """One topic.

    Attributes:
        name: Topic name.
        topic_id: Kafka's UUID of this incarnation of the topic, as text; None without topic ids.
        internal: Whether Kafka itself uses the topic, such as `__consumer_offsets`.
        partitions: Partitions, sorted by number; empty if Kafka did not describe the topic.
        problem: Why parts of the description are missing; None for a complete one.
    """

    name: str
    topic_id: str | None = None
    internal: bool = False
    partitions: tuple[PartitionDescription, ...] = ()
    problem: TidemarkError | None = None

    @property
    def records(self) -> int | None:
        """Upper bound of the records of the topic; None if a partition's offsets are unknown."""
        counts = [each.records for each in self.partitions]
        known = [count for count in counts if count is not None]
        return sum(known) if known and len(known) == len(counts) else None

    @property
    def under_replicated(self) -> int:
        """Number of under-replicated partitions."""
        return sum(each.under_replicated for each in self.partitions)

    @property
    def leaderless(self) -> int:
        """Number of leaderless partitions."""
        return sum(each.leaderless for each in self.partitions)

    def as_record(self) -> dict[str, Any]:
        """Return the topic as plain values, with the number of its partitions."""
        return {
            "topic": self.name,
            "topic_id": self.topic_id,
            "internal": self.internal,
            "partitions": len(self.partitions),
            "records": self.records,
            "under_replicated": self.under_replicated,
            "leaderless": self.leaderless,
            "problem": plain(self.problem),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """One cluster.

    Attributes:
        cluster_id: Kafka's id of the cluster; None if the brokers return none.
        controller: Id of the broker to which clients send administrative requests; None if unknown.
            With KRaft this is any broker, and the active controller is not visible to clients.
        brokers: Brokers that run now, sorted by id.
        topics: Described topics, sorted by name.
    """

    cluster_id: str | None
    controller: int | None
    brokers: tuple[BrokerDescription, ...]
    topics: tuple[TopicDescription, ...]

    def addresses(self) -> Iterable[str]:
        """Yield the address of each broker, as `host:port`."""
        return (f"{each.host}:{each.port}" for each in self.brokers)

    def as_record(self) -> dict[str, Any]:
        """Return the cluster as plain values, without its topics."""
        return record_of(self, without=["topics"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a topic or a broker.

    Attributes:
        name: Kafka's name of the setting.
        value: Value; None for a sensitive setting and for one without a value.
        source: Origin of the value, in Kafka's words, such as "dynamic topic config".
        is_default: Whether the value is Kafka's default.
        is_sensitive: Whether the value is a secret, which no description contains.
    """

    name: str
    value: str | None
    source: str
    is_default: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one topic or broker, sorted by name.

    Attributes:
        values: Settings; empty with a `problem`.
        problem: Why there are none, such as a missing right; None if Kafka returned the settings.
    """

    values: tuple[Setting, ...] = ()
    problem: TidemarkError | None = None

    @property
    def changed(self) -> tuple[Setting, ...]:
        """The settings with another value than Kafka's default."""
        return tuple(each for each in self.values if not each.is_default)

    def as_record(self, *, all_settings: bool) -> dict[str, Any]:
        """Return the settings as plain values: all of them, or those that differ from defaults."""
        shown = self.values if all_settings else self.changed
        return {"settings": plain(shown), "settings_problem": plain(self.problem)}

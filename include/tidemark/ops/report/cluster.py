"""A Kafka cluster with the pipelines that read its topics (S20). Only reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

from tidemark.core.cluster import ClusterDescription, Settings, TopicDescription
from tidemark.core.errors import TidemarkError
from tidemark.core.plain import plain
from tidemark.spec.model import PipelineSpec


class ClusterReader(Protocol):
    """Describes a cluster. The methods raise `KafkaFailure`, or return it as a `problem`."""

    def describe(self, topics: Sequence[str] | None = None) -> ClusterDescription:
        """Return the cluster with some topics or with all, without offsets."""

    def with_offsets(self, topics: Collection[TopicDescription]) -> tuple[TopicDescription, ...]:
        """Return topics with the low and high watermarks of their partitions."""

    def topic_settings(self, topic: str) -> Settings:
        """Return the settings of a topic."""

    def broker_settings(self, broker: int) -> Settings:
        """Return the settings of a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPipeline:
    """A pipeline that reads a topic, and the connection that it uses."""

    pipeline: str
    connection: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster, and the pipelines that read it.

    Attributes:
        connection: The connection through which the cluster was described.
        cluster: The cluster.
        pipelines: Pipelines of the cluster by topic.
        missing_topics: Topics of these pipelines that do not exist, or that the principal may not
            describe.
        other_connections: Connections of pipelines that do not lead to the cluster.
        more_topics: Number of topics after those of `cluster`, if their number was limited.
    """

    connection: str
    cluster: ClusterDescription
    pipelines: Mapping[str, tuple[ReadingPipeline, ...]]
    missing_topics: tuple[str, ...]
    other_connections: tuple[str, ...]
    more_topics: int = 0

    def readers(self, topic: str) -> tuple[ReadingPipeline, ...]:
        """Return the pipelines that read a topic, sorted by name."""
        return self.pipelines.get(topic, ())

    def as_record(self) -> dict[str, Any]:
        """Return the view as plain values."""
        return {
            "connection": self.connection,
            **self.cluster.as_record(),
            "topics": [
                {
                    **topic.as_record(),
                    "pipelines": plain(self.readers(topic.name)),
                }
                for topic in self.cluster.topics
            ],
            "missing_topics": list(self.missing_topics),
            "other_connections": list(self.other_connections),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic with its partitions, settings and pipelines.

    Attributes:
        connection: The connection through which the topic was described.
        cluster: The cluster, with this topic alone.
        topic: The topic, with offsets.
        settings: Settings of the topic.
        pipelines: Pipelines that read the topic.
    """

    connection: str
    cluster: ClusterDescription
    topic: TopicDescription
    settings: Settings
    pipelines: tuple[ReadingPipeline, ...]

    def as_record(self, *, all_settings: bool = False) -> dict[str, Any]:
        """Return the view as plain values; `partitions` is a list with an item for each.

        Args:
            all_settings: Return all settings, not only those that differ from Kafka's defaults.
        """
        return {
            "connection": self.connection,
            **self.cluster.as_record(),
            **self.topic.as_record(),
            "partitions": plain(self.topic.partitions),
            **self.settings.as_record(all_settings=all_settings),
            "pipelines": plain(self.pipelines),
        }


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """Reports about the cluster of one connection.

    Attributes:
        connection: Connection id.
        reader: Describes the cluster of the connection.
        specs: Every pipeline, also those of other clusters.
        addresses: Returns the bootstrap servers of a connection, as `host:port`.
    """

    connection: str
    reader: ClusterReader
    specs: Sequence[PipelineSpec]
    addresses: Callable[[str], AbstractSet[str]]

    def overview(self) -> ClusterView:
        """Return brokers and all topics, without offsets: three requests.

        Raises:
            KafkaUnavailable, KafkaRefused: The cluster does not answer, or refuses the principal.
        """
        cluster = self.reader.describe()
        used = self._connections_of(cluster)
        pipelines = pipelines_by_topic(self.specs, used)
        return ClusterView(
            connection=self.connection,
            cluster=cluster,
            pipelines=pipelines,
            missing_topics=tuple(sorted({*pipelines} - {each.name for each in cluster.topics})),
            other_connections=tuple(sorted({each.connection for each in self.specs} - used)),
        )

    def topics(
        self, *, internal: bool = False, pattern: str = "*", most: int | None = None
    ) -> ClusterView:
        """Return brokers and topics with offsets.

        Args:
            internal: Include the topics that Kafka itself uses.
            pattern: Only topics whose whole name matches, also missing ones: `*` is any text, `?`
                one character, `[ab]` one of some characters.
            most: Maximum number of topics, the first ones by name; None for all.

        Raises:
            KafkaUnavailable, KafkaRefused: As `overview`.
        """
        view = self.overview()
        matching = [
            each
            for each in view.cluster.topics
            if (internal or not each.internal) and fnmatchcase(each.name, pattern)
        ]
        missing = tuple(each for each in view.missing_topics if fnmatchcase(each, pattern))
        shown = matching[:most]
        cluster = replace(view.cluster, topics=self.reader.with_offsets(shown))
        return replace(
            view,
            cluster=cluster,
            missing_topics=missing,
            more_topics=len(matching) - len(shown),
        )

    def topic(self, name: str) -> TopicView:
        """Return one topic with offsets and settings.

        Raises:
            TopicMissing: There is no such topic.
            KafkaUnavailable, KafkaRefused: As `overview`, or the principal may not describe it.
        """
        cluster = self.reader.describe([name])
        topics = self.reader.with_offsets(cluster.topics)
        return TopicView(
            connection=self.connection,
            cluster=replace(cluster, topics=topics),
            topic=topics[0],
            settings=self.reader.topic_settings(name),
            pipelines=pipelines_by_topic(self.specs, self._connections_of(cluster)).get(name, ()),
        )

    def broker_settings(self, broker: int) -> Settings:
        """Return the settings of a broker by its id; an error becomes the `problem`."""
        return self.reader.broker_settings(broker)

    def _connections_of(self, cluster: ClusterDescription) -> AbstractSet[str]:
        """Return the connections of pipelines, and this one, that lead to the cluster.

        Such a connection has a bootstrap server that is a broker of the cluster, or that this
        connection has too.
        """
        known = {*self.addresses(self.connection), *map(str.lower, cluster.addresses())}
        used = {spec.connection for spec in self.specs} - {self.connection}
        return {self.connection, *(each for each in used if self._leads_to(each, known))}

    def _leads_to(self, connection: str, addresses: AbstractSet[str]) -> bool:
        try:
            return not addresses.isdisjoint(self.addresses(connection))
        except TidemarkError:
            return False


def pipelines_by_topic(
    specs: Iterable[PipelineSpec], connections: Collection[str]
) -> dict[str, tuple[ReadingPipeline, ...]]:
    """Return the pipelines that use one of some connections, by topic, sorted by name."""
    found: dict[str, list[ReadingPipeline]] = {}
    for spec in sorted(specs, key=lambda spec: spec.name):
        if spec.connection in connections:
            reading = ReadingPipeline(pipeline=spec.name, connection=spec.connection)
            found.setdefault(spec.topic, []).append(reading)
    return {topic: tuple(each) for topic, each in found.items()}

"""Brokers, topics, partitions and settings through librdkafka's AdminClient. Changes nothing.

No request of this module can create a topic, even on a broker that creates topics on request. Only
`list_topics` with a name could; this module calls it without one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from confluent_kafka import OFFSET_INVALID, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    OffsetSpec,
    ResourceType,
)

from tidemark.core.cluster import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    Setting,
    Settings,
    TopicDescription,
)
from tidemark.core.errors import TidemarkError
from tidemark.kafka.admin import AdminRequests, silent_leader, topic_id_of
from tidemark.kafka.errors import KafkaFailure, KafkaUnavailable, TopicMissing

_CLUSTER = "the cluster"
_DESCRIBE = "a principal with Describe on the topic"
_CONFIGS = "a principal with DescribeConfigs on the topic or, for a broker, on the cluster"
PARTITIONS_AT_ONCE = 1_000
"""Partitions in one request for offsets. The client keeps 1.6 kB for each until it has answers."""
_LEAST_TIMEOUT_S = 0.1
"""Timeout of a request for offsets if earlier ones used up the time."""


class KafkaClusterReader:
    """Describes a cluster. Each call uses a client of its own, so threads can share a reader.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        timeout_seconds: Longest duration of a request, in seconds.
    """

    def __init__(self, config: Mapping[str, Any], timeout_seconds: float = 30.0) -> None:
        self._config = config
        self._timeout = timeout_seconds

    def describe(self, topics: Sequence[str] | None = None) -> ClusterDescription:
        """Return the cluster without offsets, in three requests for any number of topics.

        Args:
            topics: Names of the topics to describe; None for all that the principal may describe.

        Raises:
            KafkaUnavailable: No broker answered in time, or not the one that the others name as
                the controller. With KRaft they name any broker, so a retry may find another one.
            KafkaRefused: The brokers refuse the principal, or it may not describe a topic of
                `topics`.
            TopicMissing: A topic of `topics` does not exist.
        """
        if topics is not None and not all(topics):
            # librdkafka raises ValueError for an empty name.
            raise TopicMissing(topic="")
        requests = AdminRequests(self._config, needed=_DESCRIBE)
        described = requests.result(
            "describe_cluster",
            _CLUSTER,
            requests.admin.describe_cluster(request_timeout=self._timeout),
        )
        if topics is None:
            found = self._all_topics(requests)
        else:
            answers = self._request_topics(requests, topics)
            found = [self._existing(requests, name, answers[name]) for name in answers]
        controller = described.controller
        return ClusterDescription(
            cluster_id=described.cluster_id or None,
            controller=None if controller is None else controller.id,
            brokers=tuple(
                BrokerDescription(id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in sorted(described.nodes, key=lambda node: int(node.id))
            ),
            topics=tuple(sorted(found, key=lambda each: each.name)),
        )

    def with_offsets(self, topics: Collection[TopicDescription]) -> tuple[TopicDescription, ...]:
        """Return topics with the low and high watermarks of all their partitions.

        Sends two requests to each leader, and two more for each further thousand partitions. All
        requests share one timeout. An error is the `problem` of its topic; the other topics have
        their offsets. A leaderless partition has none.
        """
        requests = AdminRequests(self._config, needed=_DESCRIBE)
        places = [
            TopicPartition(topic.name, each.number)
            for topic in topics
            for each in topic.partitions
            if not each.leaderless
        ]
        if not places:
            return tuple(topics)
        first: _Offsets = {}
        end: _Offsets = {}
        deadline = time.monotonic() + self._timeout
        for start in range(0, len(places), PARTITIONS_AT_ONCE):
            some = places[start : start + PARTITIONS_AT_ONCE]
            # Half of the time is left for the second request if a leader does not answer the first.
            for found, spec, share in (
                (first, OffsetSpec.earliest(), 2),
                (end, OffsetSpec.latest(), 1),
            ):
                timeout = max((deadline - time.monotonic()) / share, _LEAST_TIMEOUT_S)
                found |= _offsets(requests, requests.list_offsets(some, spec, timeout))
        return tuple(_with_offsets(topic, first, end) for topic in topics)

    def topic_settings(self, topic: str) -> Settings:
        """Return the settings of a topic; an error becomes the `problem`."""
        return self._settings(ConfigResource(ResourceType.TOPIC, topic), topic)

    def broker_settings(self, broker: int) -> Settings:
        """Return the settings of a broker by its id; an error becomes the `problem`."""
        return self._settings(ConfigResource(ResourceType.BROKER, str(broker)), f"broker {broker}")

    # -- topics ----------------------------------------------------------------------------------

    def _names(self, requests: AdminRequests) -> list[str]:
        return requests.topic_names(self._timeout)

    def _request_topics(
        self, requests: AdminRequests, names: Sequence[str]
    ) -> Mapping[str, Future[Any]]:
        answers: Mapping[str, Future[Any]] = requests.admin.describe_topics(
            TopicCollection(names), request_timeout=self._timeout
        )
        return answers

    def _all_topics(self, requests: AdminRequests) -> list[TopicDescription]:
        names = self._names(requests)
        if not names:
            return []
        found = []
        for name, answer in self._request_topics(requests, names).items():
            # A topic can be deleted between both requests.
            with suppress(TopicMissing):
                found.append(_topic_or_problem(requests, name, answer))
        unanswered = [each.problem for each in found if isinstance(each.problem, KafkaUnavailable)]
        if unanswered and len(unanswered) == len(found):
            raise unanswered[0]
        return found

    def _existing(
        self, requests: AdminRequests, name: str, answer: Future[Any]
    ) -> TopicDescription:
        try:
            return _topic(requests, name, answer)
        except TopicMissing as missing:
            raise requests.with_suggestions(missing, self._timeout) from missing

    # -- settings --------------------------------------------------------------------------------

    def _settings(self, resource: ConfigResource, name: str) -> Settings:
        try:
            requests = AdminRequests(self._config, needed=_CONFIGS)
            answers = requests.admin.describe_configs([resource], request_timeout=self._timeout)
            entries = requests.result("describe_configs", name, answers[resource])
        except KafkaFailure as error:
            return Settings(problem=error)
        return Settings(values=tuple(_setting(entries[each]) for each in sorted(entries)))


def _topic(requests: AdminRequests, name: str, answer: Future[Any]) -> TopicDescription:
    described = requests.result("describe_topics", name, answer)
    return TopicDescription(
        name=name,
        topic_id=topic_id_of(described),
        internal=described.is_internal,
        partitions=tuple(
            PartitionDescription(
                number=each.id,
                leader=None if each.leader is None or each.leader.id < 0 else each.leader.id,
                replicas=tuple(node.id for node in each.replicas),
                isr=tuple(node.id for node in each.isr),
            )
            for each in sorted(described.partitions, key=lambda each: int(each.id))
        ),
    )


def _topic_or_problem(requests: AdminRequests, name: str, answer: Future[Any]) -> TopicDescription:
    """Return a description; an error other than a missing topic becomes its `problem`."""
    try:
        return _topic(requests, name, answer)
    except TopicMissing:
        raise
    except KafkaFailure as error:
        return TopicDescription(name=name, problem=error)


_Offsets: TypeAlias = dict[tuple[str, int], int | TidemarkError]


def _offsets(
    requests: AdminRequests, futures: Mapping[TopicPartition, Future[ListOffsetsResultInfo]]
) -> _Offsets:
    """Return the offset or the error of each topic and partition."""
    found: _Offsets = {}
    for place, future in futures.items():
        try:
            offset = requests.result("list_offsets", place.topic, future).offset
        except KafkaFailure as error:
            found[place.topic, place.partition] = error
            continue
        is_silent = offset == OFFSET_INVALID
        found[place.topic, place.partition] = (
            silent_leader(place.topic, place.partition) if is_silent else offset
        )
    return found


def _with_offsets(topic: TopicDescription, first: _Offsets, end: _Offsets) -> TopicDescription:
    partitions, problem = [], topic.problem
    for each in topic.partitions:
        place = (topic.name, each.number)
        low, high = first.get(place), end.get(place)
        if isinstance(low, int) and isinstance(high, int):
            partitions.append(replace(each, first=low, end=high))
        else:
            errors = (error for error in (low, high) if isinstance(error, TidemarkError))
            problem = problem or next(errors, None)
            partitions.append(each)
    return replace(topic, partitions=tuple(partitions), problem=problem)


def _setting(entry: ConfigEntry) -> Setting:
    return Setting(
        name=entry.name,
        # Brokers return no value of a sensitive setting; this also holds for one that would.
        value=None if entry.is_sensitive else entry.value,
        source=ConfigSource(entry.source).name.lower().replace("_", " "),
        is_default=entry.is_default,
        is_sensitive=entry.is_sensitive,
    )

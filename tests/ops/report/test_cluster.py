"""A cluster's topics, joined with the pipelines that read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.support.plans import make_spec
from tidemark.core.cluster import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    Settings,
    TopicDescription,
)
from tidemark.kafka.errors import InvalidConnection, KafkaUnavailable
from tidemark.ops.report.cluster import ClusterReport, ReadingPipeline, pipelines_by_topic
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import PipelineRef

PARTITION = PartitionDescription(number=0, leader=1, replicas=(1,), isr=(1,))
CLUSTER = ClusterDescription(
    cluster_id="c",
    controller=1,
    brokers=(BrokerDescription(id=1, host="Broker-1", port=9092, rack=None),),
    topics=(
        TopicDescription(name="__consumer_offsets", internal=True, partitions=(PARTITION,)),
        TopicDescription(name="prices", partitions=(PARTITION,)),
    ),
)


def spec(name: str, topic: str, connection: str = "kafka_default") -> PipelineSpec:
    return make_spec(ref=PipelineRef(name), topic=topic, connection=connection)


def reading(pipeline: str, connection: str = "kafka_default") -> ReadingPipeline:
    return ReadingPipeline(pipeline=pipeline, connection=connection)


@dataclass
class FixedCluster:
    """A reader of `CLUSTER`, in which the log of each partition is `[2, 5)`."""

    measured: list[str] = field(default_factory=list)

    def describe(self, topics: Sequence[str] | None = None) -> ClusterDescription:
        found = tuple(each for each in CLUSTER.topics if topics is None or each.name in topics)
        return replace(CLUSTER, topics=found)

    def with_offsets(self, topics: Collection[TopicDescription]) -> tuple[TopicDescription, ...]:
        self.measured += [each.name for each in topics]
        whole = (replace(PARTITION, first=2, end=5),)
        return tuple(replace(each, partitions=whole) for each in topics)

    def topic_settings(self, topic: str) -> Settings:
        return Settings(problem=KafkaUnavailable(operation=topic, reason="slow"))

    def broker_settings(self, broker: int) -> Settings:
        return Settings(problem=KafkaUnavailable(operation=f"broker {broker}", reason="slow"))


ADDRESSES: Mapping[str, frozenset[str]] = {
    "kafka_default": frozenset({"proxy:1"}),
    "by_broker": frozenset({"dead:9092", "broker-1:9092"}),
    "by_proxy": frozenset({"proxy:1"}),
    "elsewhere": frozenset({"broker-1:9093"}),
}


def addresses(connection: str) -> frozenset[str]:
    if connection not in ADDRESSES:
        raise InvalidConnection.of_undefined(connection)
    return ADDRESSES[connection]


def report(*specs: PipelineSpec, reader: FixedCluster | None = None) -> ClusterReport:
    return ClusterReport("kafka_default", reader or FixedCluster(), specs, addresses)


def test_s20_each_topic_has_its_pipelines_and_their_connections() -> None:
    specs = [spec("b", "prices"), spec("a", "prices", "other"), spec("c", "orders", "third")]
    assert pipelines_by_topic(specs, {"kafka_default", "other"}) == {
        "prices": (reading("a", "other"), reading("b"))
    }


@pytest.mark.parametrize("connection", ["by_broker", "by_proxy"])
def test_a_connection_with_an_address_of_the_cluster_leads_to_it(connection: str) -> None:
    view = report(spec("a", "prices", connection)).overview()
    assert view.readers("prices") == (reading("a", connection),)
    assert view.other_connections == ()


@pytest.mark.parametrize("connection", ["elsewhere", "undefined"])
def test_a_connection_to_another_cluster_or_without_definition_does_not(connection: str) -> None:
    """A topic of the same name in another cluster is another topic."""
    view = report(spec("a", "prices", connection)).overview()
    assert view.readers("prices") == ()
    assert (view.missing_topics, view.other_connections) == ((), (connection,))


def test_topics_that_a_pipeline_should_read_and_the_cluster_lacks_are_missing() -> None:
    view = report(spec("a", "orders"), spec("b", "prices")).overview()
    assert view.missing_topics == ("orders",)
    assert view.readers("orders") == (reading("a"),)


def test_offsets_are_read_of_the_shown_topics_only() -> None:
    reader = FixedCluster()
    cluster = report(spec("a", "__consumer_offsets"), reader=reader)
    cluster.overview()
    assert reader.measured == []
    view = cluster.topics()
    assert reader.measured == [each.name for each in view.cluster.topics] == ["prices"]
    # The internal topic exists, although it is not shown.
    assert view.missing_topics == ()
    assert [each.name for each in cluster.topics(internal=True).cluster.topics] == [
        "__consumer_offsets",
        "prices",
    ]


@pytest.mark.parametrize("pattern", ["prices", "pr*", "p?ices", "[op]rices"])
def test_a_pattern_selects_topics_and_missing_topics_by_their_whole_name(pattern: str) -> None:
    reader = FixedCluster()
    cluster = report(spec("a", "orders"), spec("b", "orders-old"), reader=reader)
    view = cluster.topics(pattern=pattern)
    assert reader.measured == [each.name for each in view.cluster.topics] == ["prices"]
    assert view.missing_topics == ()
    others = cluster.topics(internal=True, pattern="orders")
    assert (others.cluster.topics, others.missing_topics) == ((), ("orders",))
    assert cluster.topics(pattern="Prices").cluster.topics == ()


def test_a_topic_without_settings_has_the_rest_and_the_reason() -> None:
    record = report(spec("a", "prices")).topic("prices").as_record()
    assert record["settings"] == []
    assert record["settings_problem"]["error"] == "KafkaUnavailable"
    (partition,) = record["partitions"]
    assert (partition["first"], partition["end"], partition["records"]) == (2, 5, 3)
    assert record["pipelines"] == [{"pipeline": "a", "connection": "kafka_default"}]


def test_a_limited_list_has_the_first_topics_and_the_number_of_the_others() -> None:
    reader = FixedCluster()
    cluster = report(spec("a", "orders"), reader=reader)
    view = cluster.topics(internal=True, most=1)
    assert reader.measured == [each.name for each in view.cluster.topics] == ["__consumer_offsets"]
    assert (view.more_topics, view.missing_topics) == (1, ("orders",))
    assert cluster.topics(internal=True, most=2).more_topics == 0

"""Fixtures of every test: real parts, started once, stopped by their own process ids."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tidemark.adapters.broker.embedded import Broker, BrokerConfig, BrokerStatus
from tidemark.core.layout import Layout

pytest_plugins = [
    "tests.fixtures_registry",
    "tests.fixtures_connect",
    "tests.fixtures_spark",
    "tests.fixtures_stores",
    "tests.model.tally",
    "tests.faults.tally",
    "tests.support.commands",
    "tests.timings",
]

PROJECT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits longest begins first, so that no process is alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("airflow") is None)


# -- places --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """This checkout, with a home of the test run's own."""
    return Layout(project=PROJECT, home=tmp_path_factory.mktemp("home"))


# -- the embedded broker -------------------------------------------------------------------------

TopicFactory = Callable[..., str]


@pytest.fixture(scope="session")
def broker(layout: Layout) -> Iterator[BrokerStatus]:
    """One Kafka node for the whole test run, on a free port."""
    embedded = Broker(BrokerConfig(home=layout.broker, jars=layout.kafka_jars))
    try:
        yield embedded.start()
    finally:
        embedded.stop()


@pytest.fixture(scope="session")
def admin(broker: BrokerStatus) -> AdminClient:
    """An admin client of the broker."""
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


@pytest.fixture
def topic(admin: AdminClient, request: pytest.FixtureRequest) -> TopicFactory:
    """Make topics that no other test has: `topic(partitions=3, config={"retention.ms": "1"})`."""

    def make(*, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"{request.function.__name__[:80]}-{uuid.uuid4().hex[:8]}"
        new = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        admin.create_topics([new])[name].result(timeout=30)
        _wait_for_leaders(admin, name, partitions)
        return name

    return make


def _wait_for_leaders(admin: AdminClient, topic: str, partitions: int) -> None:
    """A topic exists for the controller first; its brokers lead its partitions a moment later."""
    wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
    deadline = time.monotonic() + 180
    while True:
        try:
            # Short: a request that has found no leader does not look again by itself.
            for answer in admin.list_offsets(wanted, request_timeout=5).values():
                answer.result(timeout=10)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            # A client that asked too early may keep "no leader" as its answer until it is told to
            # look at the topic itself.
            admin.list_topics(topic, timeout=10)
            time.sleep(0.02)
        else:
            return

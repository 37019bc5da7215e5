"""Fixtures of all tests, and the real parts that all workers of a run share."""

from __future__ import annotations

import gc
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support import PROJECT as PROJECT
from tests.support.parts import Parts
from tests.support.registry import Registry, RegistryServer
from tidemark.local.broker import BrokerStatus
from tidemark.spark.engine import Server
from tidemark.spark.settings import SHORT_RUN_OPTIONS
from tidemark.spec.layout import Layout

pytest_plugins = [
    "tests.fixtures_spark",
    "tests.fixtures_stores",
    "tests.model.tally",
    "tests.faults.tally",
    "tests.support.commands",
    "tests.timings",
]

_PARTS = pytest.StashKey[Parts]()


def pytest_configure(config: pytest.Config) -> None:
    """Create the folder of the shared parts; a worker gets the folder from its controller."""
    # Tests process few records, so compiling code takes longer than running it.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SHORT_RUN_OPTIONS))
    given: dict[str, str] = getattr(config, "workerinput", {})
    config.stash[_PARTS] = Parts(Path(given["parts"])) if given else Parts.of_this_run()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker the folder of the parts."""
    node.workerinput["parts"] = str(node.config.stash[_PARTS].home)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the parts, in the controller after all workers have ended."""
    if not hasattr(config, "workerinput"):
        config.stash[_PARTS].stop()


def pytest_collection() -> None:
    """Stop garbage collection while pytest collects thousands of tests: it keeps all of them."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Start garbage collection again. Exclude the objects that exist now."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run Airflow tests first: they take longest, and would delay the end on one worker.

    Tests with the shared Airflow follow each other, so that it starts once.
    """
    items.sort(key=lambda item: (item.get_closest_marker("airflow") is None, not _is_shared(item)))


def _is_shared(item: pytest.Item | None) -> bool:
    """Return whether a test uses the shared Airflow, by the fixture `airflow` of its module."""
    return isinstance(item, pytest.Function) and "airflow" in item.fixturenames


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave the shared Airflow after the last of consecutive tests that use it."""
    if _is_shared(item) and not _is_shared(nextitem):
        item.config.stash[_PARTS].leave_airflow()


# -- places --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def parts(pytestconfig: pytest.Config) -> Parts:
    """Return the parts that all workers of the run share."""
    return pytestconfig.stash[_PARTS]


@pytest.fixture(scope="session")
def layout(parts: Parts) -> Layout:
    """This checkout, with a home of the test run's own."""
    return parts.layout


# -- shared parts ---------------------------------------------------------------------------------

TopicFactory = Callable[..., str]


@pytest.fixture(scope="session")
def broker(parts: Parts) -> BrokerStatus:
    """One Kafka node for the whole test run, on a free port."""
    return parts.broker()


@pytest.fixture(scope="session")
def registry(parts: Parts) -> Registry:
    """One schema registry for the whole test run, on a free port."""
    return parts.registry()


@pytest.fixture
def private_registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry in which no other test registers schemas, so that the next id is known."""
    server = RegistryServer(tmp_path / "registry")
    yield server.start()
    server.stop()


@pytest.fixture(scope="session")
def connect_server(parts: Parts) -> Server:
    """The address and token of one Spark Connect server for the whole test run."""
    return parts.connect_server()


@pytest.fixture(scope="session")
def admin(broker: BrokerStatus) -> AdminClient:
    """An admin client of the broker."""
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


@pytest.fixture
def topic(admin: AdminClient, request: pytest.FixtureRequest) -> TopicFactory:
    """Return a factory of topics: `topic(partitions=3, config={"retention.ms": "1"})`."""

    def make(*, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"{request.function.__name__[:80]}-{uuid.uuid4().hex[:8]}"
        new = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        admin.create_topics([new])[name].result(timeout=30)
        _wait_for_leaders(admin, name, partitions)
        return name

    return make


def _wait_for_leaders(admin: AdminClient, topic: str, partitions: int) -> None:
    """Wait until a new topic's partitions have leaders; the controller lists it before that."""
    wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
    deadline = time.monotonic() + 180
    while True:
        try:
            # The timeout is short, because a request without a leader is not repeated.
            for answer in admin.list_offsets(wanted, request_timeout=5).values():
                answer.result(timeout=10)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            # An early client may cache "no leader" until it requests the metadata of the topic.
            admin.list_topics(topic, timeout=10)
            time.sleep(0.02)
        else:
            return

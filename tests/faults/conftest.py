"""Fixtures of every fault test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lake import Lake
from tests.support.proxy import ProxiedBroker, proxied_broker
from tidemark.adapters.broker.embedded import BrokerStatus
from tidemark.core.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession, broker: BrokerStatus, tmp_path: Path) -> Lake:
    """A lake of this test's own; `lake.of(topic)` is a pipeline over a topic."""
    connection = {"bootstrap.servers": broker.bootstrap}
    return Lake(session=spark, root=tmp_path, connection=connection)


@pytest.fixture(scope="session")
def broker_behind_proxy(
    layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedBroker]:
    """One more Kafka node for the whole run, with a proxy in front of it."""
    with proxied_broker(tmp_path_factory.mktemp("proxied"), layout.kafka_jars) as proxied:
        yield proxied


@pytest.fixture
def proxied(broker_behind_proxy: ProxiedBroker) -> Iterator[ProxiedBroker]:
    """The node behind the proxy; nothing is held or slow before a test, nor after it."""
    yield broker_behind_proxy
    broker_behind_proxy.proxy.clear()

"""Fixtures of fault tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.crashes import Site
from tests.support.proxy import ProxiedBroker, proxied_broker
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records
from tidemark.spec.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def broker_behind_proxy(
    layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedBroker]:
    """Start one more Kafka node for the whole test run, with a proxy before it."""
    with proxied_broker(tmp_path_factory.mktemp("proxied"), layout.kafka_jars) as proxied:
        yield proxied


@pytest.fixture
def proxied(broker_behind_proxy: ProxiedBroker) -> Iterator[ProxiedBroker]:
    """Return the node behind the proxy, which is clear before and after the test."""
    yield broker_behind_proxy
    broker_behind_proxy.proxy.clear()


_PARTITIONS = 4
_RECORDS = 1_000
"""Records of each partition: one task reads them in less than one fetch."""
_RECORD_BYTES = 1_000


@pytest.fixture
def long_read(
    spark: SparkSession, proxied: ProxiedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Site:
    """Return a pipeline over 4 MB of random records, read by four tasks through the proxy."""
    name = f"long-read-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": proxied.direct, "log_level": 0})
    make_topic(admin, proxied.direct, name, partitions=_PARTITIONS)
    random = Random(request.node.name)
    produce_records(
        proxied.direct,
        name,
        [
            Record(value=random.randbytes(_RECORD_BYTES), partition=partition)
            for partition in range(_PARTITIONS)
            for _ in range(_RECORDS)
        ],
    )
    return Site(home=tmp_path, bootstrap=proxied.bootstrap, topic=name, session=spark)

"""Tests that the proxy affects only the selected traffic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka_judge import DeliveredRecord, log_ranges, read_all
from tests.support.proxy import ProxiedBroker, proxied_broker
from tests.support.transactions import Record, produce_records
from tidemark.core.watermarks import IsolationLevel
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.spec.layout import Layout

pytestmark = pytest.mark.broker

TOPIC = "proxied"
RECORDS = [Record(value=b"%07d" % number * 5_000) for number in range(20)]


@pytest.fixture(scope="module")
def broker_with_records(
    layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedBroker]:
    """A proxied broker with one topic of 700 kB."""
    with proxied_broker(tmp_path_factory.mktemp("proxied"), layout.kafka_jars) as broker:
        admin = AdminClient({"bootstrap.servers": broker.direct})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(timeout=30)
        produce_records(broker.direct, TOPIC, RECORDS)
        yield broker


@pytest.fixture
def broker(broker_with_records: ProxiedBroker) -> Iterator[ProxiedBroker]:
    """Return the broker, and clear its proxy after the test."""
    yield broker_with_records
    broker_with_records.proxy.clear()


@contextmanager
def reading(broker: ProxiedBroker) -> Iterator[Future[list[DeliveredRecord]]]:
    """Read the whole topic through the proxy in another thread during the block."""
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(read_all, broker.bootstrap, TOPIC)
        finally:
            broker.proxy.clear()


def test_the_proxy_alters_no_record(broker: ProxiedBroker) -> None:
    """Connections to the advertised address go through the proxy, too."""
    accepted, fetched = broker.proxy.accepted, broker.proxy.fetched
    assert read_all(broker.bootstrap, TOPIC) == read_all(broker.direct, TOPIC)
    assert broker.proxy.accepted > accepted + 1
    assert broker.proxy.fetched > fetched + 700_000


def test_a_fetch_is_held_at_the_given_byte_and_other_requests_are_answered(
    broker: ProxiedBroker,
) -> None:
    """Watermarks are returned while the fetch is held. After the release, all records arrive."""
    before = broker.proxy.fetched
    gate = broker.proxy.hold(after=100_001)
    with reading(broker) as read:
        gate.wait_held()
        assert broker.proxy.fetched == before + 100_001
        assert log_ranges(broker.bootstrap, TOPIC) == {0: (0, len(RECORDS))}
        assert not read.done()
        gate.release()
        assert len(read.result(timeout=60)) == len(RECORDS)


def test_holding_everything_also_holds_watermarks(broker: ProxiedBroker) -> None:
    """After the release, watermarks can be read."""
    gate = broker.proxy.hold(everything=True)
    config = {"bootstrap.servers": broker.bootstrap}
    with pytest.raises(KafkaUnavailable):
        KafkaWatermarkReader(config, timeout_seconds=0.5).topic_watermarks(
            TOPIC, IsolationLevel.READ_COMMITTED
        )
    assert gate.held.is_set()
    gate.release()
    assert log_ranges(broker.bootstrap, TOPIC) == {0: (0, len(RECORDS))}


def test_a_throttled_read_is_slow_and_complete(broker: ProxiedBroker) -> None:
    """700 kB at 700 kB/s take about one second."""
    broker.proxy.throttle(700_000)
    begun = time.monotonic()
    records = read_all(broker.bootstrap, TOPIC)
    assert time.monotonic() - begun > 0.9
    assert len(records) == len(RECORDS)


def test_a_reader_reconnects_after_a_cut_during_a_fetch(broker: ProxiedBroker) -> None:
    """The reader then reads all records."""
    gate = broker.proxy.hold(after=100_001)
    with reading(broker) as read:
        gate.wait_held()
        accepted = broker.proxy.accepted
        assert broker.proxy.cut() > 0
        gate.release()
        assert len(read.result(timeout=60)) == len(RECORDS)
        assert broker.proxy.accepted > accepted


def test_waiting_for_a_gate_that_holds_no_byte_times_out(broker: ProxiedBroker) -> None:
    with pytest.raises(TimeoutError, match="nothing had to wait"):
        broker.proxy.hold().wait_held(timeout_s=0.01)

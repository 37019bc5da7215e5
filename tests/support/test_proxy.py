"""The proxy disturbs the chosen traffic, and no other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka_judge import Judged, log_ranges, read_all
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
def filled(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedBroker]:
    """A proxied broker with one topic of 700 kB."""
    with proxied_broker(tmp_path_factory.mktemp("proxied"), layout.kafka_jars) as broker:
        admin = AdminClient({"bootstrap.servers": broker.direct})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(timeout=30)
        produce_records(broker.direct, TOPIC, RECORDS)
        yield broker


@pytest.fixture
def broker(filled: ProxiedBroker) -> Iterator[ProxiedBroker]:
    """The same, undisturbed again after the test."""
    yield filled
    filled.proxy.clear()


@contextmanager
def reading(broker: ProxiedBroker) -> Iterator[Future[list[Judged]]]:
    """A reader of the whole topic through the proxy, in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(read_all, broker.bootstrap, TOPIC)
        finally:
            broker.proxy.clear()


def test_what_passes_is_not_altered(broker: ProxiedBroker) -> None:
    """Clients come through the proxy, both at first and when they come back, and see the log."""
    accepted, fetched = broker.proxy.accepted, broker.proxy.fetched
    assert read_all(broker.bootstrap, TOPIC) == read_all(broker.direct, TOPIC)
    assert broker.proxy.accepted > accepted + 1
    assert broker.proxy.fetched > fetched + 700_000


def test_a_fetch_is_held_at_its_byte_and_all_else_works(broker: ProxiedBroker) -> None:
    """Exactly so many bytes have passed; marks are still answered; released, the rest comes."""
    before = broker.proxy.fetched
    gate = broker.proxy.hold(after=100_001)
    with reading(broker) as read:
        gate.wait_held()
        assert broker.proxy.fetched == before + 100_001
        assert log_ranges(broker.bootstrap, TOPIC) == {0: (0, len(RECORDS))}
        assert not read.done()
        gate.release()
        assert len(read.result(timeout=60)) == len(RECORDS)


def test_a_dead_network_answers_nothing(broker: ProxiedBroker) -> None:
    """With everything held not even the watermarks can be read, and then they can."""
    gate = broker.proxy.hold(everything=True)
    config = {"bootstrap.servers": broker.bootstrap}
    with pytest.raises(KafkaUnavailable):
        KafkaWatermarkReader(config, timeout_seconds=0.5).topic_watermarks(
            TOPIC, IsolationLevel.READ_COMMITTED
        )
    assert gate.held.is_set()
    gate.release()
    assert log_ranges(broker.bootstrap, TOPIC) == {0: (0, len(RECORDS))}


def test_a_slow_network_takes_its_time(broker: ProxiedBroker) -> None:
    """700 kB at 700 kB a second are not there in half a second, and they are complete."""
    broker.proxy.throttle(700_000)
    begun = time.monotonic()
    records = read_all(broker.bootstrap, TOPIC)
    assert time.monotonic() - begun > 0.9
    assert len(records) == len(RECORDS)


def test_a_cut_connection_is_made_again(broker: ProxiedBroker) -> None:
    """The reader loses its connections in the middle of a fetch, comes back and reads it all."""
    gate = broker.proxy.hold(after=100_001)
    with reading(broker) as read:
        gate.wait_held()
        accepted = broker.proxy.accepted
        assert broker.proxy.cut() > 0
        gate.release()
        assert len(read.result(timeout=60)) == len(RECORDS)
        assert broker.proxy.accepted > accepted


def test_a_gate_that_nothing_reaches_says_so(broker: ProxiedBroker) -> None:
    """Waiting has an end."""
    with pytest.raises(TimeoutError, match="nothing had to wait"):
        broker.proxy.hold().wait_held(timeout_s=0.01)

"""Tests of the independent reader."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.conftest import TopicFactory
from tests.support.kafka_judge import group_names, log_ranges, read_all, read_ranges
from tidemark.local.broker import BrokerStatus

pytestmark = pytest.mark.broker


def _transaction(broker: BrokerStatus, topic: str, values: list[bytes], *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value=value, partition=0)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def test_i1_reading_a_range_that_ends_in_markers_ends(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Aborted records and markers at the end of a log are gaps."""
    name = topic()
    _transaction(broker, name, [b"a", b"b"], commit=True)
    _transaction(broker, name, [b"x", b"y"], commit=False)
    assert log_ranges(broker.bootstrap, name) == {0: (0, 6)}
    seen = read_all(broker.bootstrap, name)
    assert [(record.offset, record.value) for record in seen] == [(0, b"a"), (1, b"b")]


def test_i1_reading_a_range_that_ends_in_a_gap_inside_the_log_ends(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """No record at or past the end is returned."""
    name = topic()
    _transaction(broker, name, [b"x", b"y"], commit=False)
    _transaction(broker, name, [b"a", b"b"], commit=True)
    assert read_ranges(broker.bootstrap, name, {0: (0, 3)}) == []
    one = read_ranges(broker.bootstrap, name, {0: (0, 4)})
    assert [(record.offset, record.value) for record in one] == [(3, b"a")]


def test_s8_read_uncommitted_returns_aborted_records(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    _transaction(broker, name, [b"x"], commit=False)
    assert [r.value for r in read_all(broker.bootstrap, name, isolation="read_uncommitted")] == [
        b"x"
    ]


def test_s4_null_and_empty_keys_values_and_headers_are_distinguished(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    headers = [("h", None), ("h", b""), ("other", b"\x00")]
    producer.produce(name, key=None, value=None, timestamp=1_700_000_000_000)
    producer.produce(name, key=b"", value=b"", headers=headers, timestamp=1_700_000_000_001)
    producer.flush(30)
    assert [record[2:] for record in read_all(broker.bootstrap, name)] == [
        (None, None, (), 1, 1_700_000_000_000),
        (b"", b"", (("h", None), ("h", b""), ("other", b"\x00")), 1, 1_700_000_000_001),
    ]


def test_s1_the_judge_creates_no_consumer_group(broker: BrokerStatus, topic: TopicFactory) -> None:
    """The judge assigns partitions and does not subscribe."""
    assert read_all(broker.bootstrap, topic()) == []
    assert "judge" not in group_names(broker.bootstrap)

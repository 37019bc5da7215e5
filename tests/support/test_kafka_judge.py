"""Tests of the independent reader."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.conftest import TopicFactory
from tests.support.kafka_judge import group_names, log_ranges, read_all, read_ranges
from tidemark.dev.broker import BrokerStatus

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


def test_range_that_ends_in_markers_ends(broker: BrokerStatus, topic: TopicFactory) -> None:
    """I1: aborted records and markers are gaps, also as the last offsets of a range and a log."""
    name = topic()
    _transaction(broker, name, [b"a", b"b"], commit=True)
    _transaction(broker, name, [b"x", b"y"], commit=False)
    assert log_ranges(broker.bootstrap, name) == {0: (0, 6)}
    seen = read_all(broker.bootstrap, name)
    assert [(record.offset, record.value) for record in seen] == [(0, b"a"), (1, b"b")]


def test_range_that_ends_in_a_gap_inside_the_log_ends(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """I1: nothing at or past the end is returned, though the first visible record is past it."""
    name = topic()
    _transaction(broker, name, [b"x", b"y"], commit=False)
    _transaction(broker, name, [b"a", b"b"], commit=True)
    assert read_ranges(broker.bootstrap, name, {0: (0, 3)}) == []
    one = read_ranges(broker.bootstrap, name, {0: (0, 4)})
    assert [(record.offset, record.value) for record in one] == [(3, b"a")]


def test_read_uncommitted_sees_aborted_records(broker: BrokerStatus, topic: TopicFactory) -> None:
    """S8: the isolation level asked for is the one used."""
    name = topic()
    _transaction(broker, name, [b"x"], commit=False)
    assert [r.value for r in read_all(broker.bootstrap, name, isolation="read_uncommitted")] == [
        b"x"
    ]


def test_null_is_not_empty(broker: BrokerStatus, topic: TopicFactory) -> None:
    """S4: keys, values and headers come back as they went in, absent or empty."""
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


def test_s1_judge_leaves_no_group(broker: BrokerStatus, topic: TopicFactory) -> None:
    """S1: reading by assignment leaves nothing in Kafka, so a group found later is not its."""
    assert read_all(broker.bootstrap, topic()) == []
    assert "judge" not in group_names(broker.bootstrap)

"""The second reader on a real broker: it returns exactly the visible records of spans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import TopicFactory
from tests.support.kafka_judge import group_names, read_all
from tests.support.proxy import proxied_broker
from tests.support.raw_batches import RawRecord, produce_raw
from tests.support.topics import (
    COMPACTED,
    delete_records,
    make_topic,
    produce_rolled,
    wait_for_compaction,
)
from tests.support.transactions import (
    Record,
    open_transaction,
    produce_aborted,
    produce_committed,
    produce_records,
    produce_values,
)
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.record import LogRecord, TimestampType
from tidemark.core.watermarks import IsolationLevel
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable, OffsetsDeleted, TopicMissing
from tidemark.kafka.reader import KafkaLogReader
from tidemark.local.broker import BrokerStatus
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout

pytestmark = pytest.mark.broker

COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


@pytest.fixture
def reader(broker: BrokerStatus) -> KafkaLogReader:
    return KafkaLogReader({"bootstrap.servers": broker.bootstrap})


def spans(*bounds: tuple[int, int]) -> SpanSet:
    return SpanSet.of(Span(*each) for each in bounds)


def offsets(
    reader: KafkaLogReader, topic: str, *bounds: tuple[int, int], level: IsolationLevel = COMMITTED
) -> list[int]:
    """Return the offsets of partition 0 that the reader yields for these spans, in its order."""
    return [record.offset for record in reader.read(topic, level, {0: spans(*bounds)})]


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    """Check that the block ends within this time."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


# -- records -------------------------------------------------------------------------------------


def test_every_part_of_a_record_is_read(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """S4: null differs from empty, header names repeat, header values may be null."""
    name = topic(config={"retention.ms": "-1"})
    headers = (("a", b"1"), ("a", None), ("é", b""))
    produce_records(
        broker.bootstrap,
        name,
        [
            Record(key=b"k", value=b"x" * 65_536, headers=headers, timestamp_ms=1_700_000_000_123),
            Record(key=None, value=None, timestamp_ms=1),
            Record(key=b"", value=b"", timestamp_ms=2),
        ],
    )
    shared: dict[str, Any] = {"partition": 0, "timestamp_type": TimestampType.CREATE}
    assert list(reader.read(name, COMMITTED, {0: spans((0, 3))})) == [
        LogRecord(
            offset=0,
            key=b"k",
            value=b"x" * 65_536,
            headers=headers,
            timestamp_ms=1_700_000_000_123,
            **shared,
        ),
        LogRecord(offset=1, key=None, value=None, headers=(), timestamp_ms=1, **shared),
        LogRecord(offset=2, key=b"", value=b"", headers=(), timestamp_ms=2, **shared),
    ]


def test_every_producer_timestamp_is_read_unchanged(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Covers times before 1970, no time (-1), and times centuries in the future."""
    name = topic(config={"message.timestamp.after.max.ms": str(2**62), "retention.ms": "-1"})
    times = [-86_400_001, -1, 4_102_444_800_001, 32_503_680_000_000]
    produce_records(broker.bootstrap, name, [Record(timestamp_ms=ms) for ms in times])
    records = list(reader.read(name, COMMITTED, {0: spans((0, 4))}))
    assert [record.timestamp_ms for record in records] == times
    assert {record.timestamp_type for record in records} == {TimestampType.CREATE}


def test_a_record_with_a_header_name_that_is_not_utf8_is_read_without_its_headers(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic(config={"retention.ms": "-1"})
    # Enough calls for Python to specialise them.
    names = [b"a", b"\xff", b"b"] * 50
    records = [RawRecord(value=each, headers=((each, b"1"), (b"x", b"2"))) for each in names]
    produce_raw(broker.bootstrap, name, records)
    read = list(reader.read(name, COMMITTED, {0: spans((0, len(names)))}))
    assert [record.value for record in read] == names
    assert [record.headers for record in read] == [
        None if each == b"\xff" else ((each.decode(), b"1"), ("x", b"2")) for each in names
    ]


def test_log_append_time_has_its_own_timestamp_type(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    produce_values(broker.bootstrap, name, 1)
    (record,) = reader.read(name, COMMITTED, {0: spans((0, 1))})
    (expected,) = read_all(broker.bootstrap, name)
    assert record.timestamp_type is TimestampType.LOG_APPEND
    assert record.timestamp_ms == expected.timestamp_ms


def test_near_and_distant_spans_are_read_exactly(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The reader reads over short gaps and seeks over long ones."""
    name = topic()
    for _ in range(3):
        produce_values(broker.bootstrap, name, 30_000)
    bounds = [(0, 1), (5, 8), (9, 10), (40_000, 40_003), (65_000, 65_001), (89_998, 90_000)]
    wanted = [offset for start, end in bounds for offset in range(start, end)]
    with takes_at_most(10):
        assert offsets(reader, name, *bounds) == wanted


def test_s11_each_of_many_partitions_is_read_in_offset_order(
    broker: BrokerStatus, admin: AdminClient, topic: TopicFactory
) -> None:
    """Several clients read at the same time; other partitions are not read."""
    name = topic(partitions=205)
    filled = (0, 3, 199, 200, 204)
    for partition in filled:
        produce_values(broker.bootstrap, name, 5, partition=partition)
    reader = KafkaLogReader({"bootstrap.servers": broker.bootstrap})
    wanted = {partition: spans((1, 2), (3, 5)) for partition in filled}
    found: dict[int, list[int]] = {}
    for record in reader.read(name, COMMITTED, {**wanted, 1: SpanSet()}):
        found.setdefault(record.partition, []).append(record.offset)
    assert found == {partition: [1, 3, 4] for partition in filled}


def test_first_records_yields_one_record_for_each_partition(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """A partition without a visible record in its span yields none."""
    name = topic(partitions=205)
    for partition in (0, 3, 204):
        produce_values(broker.bootstrap, name, 2_000, partition=partition)
    produce_aborted(broker.bootstrap, name, [Record(partition=7)] * 50)
    wanted = {0: spans((5, 9), (20, 2_000)), 3: spans((0, 2_000)), 204: spans((1_999, 2_000))}
    with takes_at_most(10):
        found = list(reader.first_records(name, COMMITTED, {**wanted, 7: spans((0, 50))}))
    assert sorted((record.partition, record.offset) for record in found) == [
        (0, 5),
        (3, 0),
        (204, 1_999),
    ]


def test_reading_no_spans_makes_no_connection(reader: KafkaLogReader) -> None:
    assert list(reader.read("nowhere", COMMITTED, {})) == []
    assert list(reader.read("nowhere", COMMITTED, {0: SpanSet()})) == []


def test_closing_the_iterator_early_closes_the_client(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 5_000)
    reading = reader.read(name, COMMITTED, {0: spans((0, 5_000))})
    assert next(reading).offset == 0
    with takes_at_most(5):
        reading.close()  # type: ignore[attr-defined]
    assert list(reading) == []


# -- gaps ----------------------------------------------------------------------------------------


def test_s6_markers_and_aborted_records_are_gaps(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The spans end in markers, in aborted records and at the end of the log.

    Offsets: 0-2 committed, 3 marker, 4-6 aborted, 7 marker, 8 committed, 9 marker, 10-11 aborted,
    12 marker.
    """
    name = topic()
    produce_committed(broker.bootstrap, name, [Record()] * 3)
    produce_aborted(broker.bootstrap, name, [Record()] * 3)
    produce_committed(broker.bootstrap, name, [Record()])
    produce_aborted(broker.bootstrap, name, [Record()] * 2)
    with takes_at_most(20):
        assert offsets(reader, name, (0, 13)) == [0, 1, 2, 8]
        assert offsets(reader, name, (3, 4)) == []
        assert offsets(reader, name, (3, 8)) == []
        assert offsets(reader, name, (9, 10), (12, 13)) == []
        assert offsets(reader, name, (2, 5), (7, 9)) == [2, 8]
        assert offsets(reader, name, (12, 13)) == []
        assert offsets(reader, name, (4, 13), level=UNCOMMITTED) == [4, 5, 6, 8, 10, 11]
        assert offsets(reader, name, (3, 4), (7, 8), (12, 13), level=UNCOMMITTED) == []


def test_s8_records_of_an_open_transaction_are_visible_only_to_read_uncommitted(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """For read_committed the log ends before the transaction."""
    name = topic()
    produce_values(broker.bootstrap, name, 2)
    with open_transaction(broker.bootstrap, name, [Record()] * 2):
        assert offsets(reader, name, (1, 2)) == [1]
        assert offsets(reader, name, (0, 4), level=UNCOMMITTED) == [0, 1, 2, 3]


def test_s6_compacted_offsets_are_gaps(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic(config=COMPACTED)
    versions = [Record(key=b"a", value=b"%d" % n) for n in range(5)]
    produce_rolled(broker.bootstrap, name, versions, [Record(key=b"b")])
    wait_for_compaction(broker.bootstrap, name, {4, 5})
    assert offsets(reader, name, (0, 4)) == []
    assert offsets(reader, name, (0, 6)) == [4, 5]
    assert offsets(reader, name, (3, 5)) == [4]


@pytest.mark.faults
def test_fetching_many_aborted_records_is_not_a_timeout(layout: Layout, tmp_path: Path) -> None:
    """No record is visible for longer than the timeout, but the fetches progress."""
    with proxied_broker(tmp_path, layout.kafka_jars) as proxied:
        admin = AdminClient({"bootstrap.servers": proxied.direct})
        name = make_topic(admin, proxied.direct, "aborted")
        produce_aborted(proxied.direct, name, [Record(value=b"x" * 50_000)] * 500)
        produce_values(proxied.direct, name, 1)
        reader = KafkaLogReader({"bootstrap.servers": proxied.bootstrap}, progress_timeout_s=15)
        proxied.proxy.throttle(1_000_000)
        start = time.monotonic()
        assert offsets(reader, name, (0, 502)) == [501]
        assert time.monotonic() - start > 15


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [((2, 8),), ((2, 3), (8, 9)), ((4, 6),)])
def test_s7_reading_deleted_offsets_raises_offsets_deleted(
    reader: KafkaLogReader,
    broker: BrokerStatus,
    admin: AdminClient,
    topic: TopicFactory,
    wanted: tuple[tuple[int, int], ...],
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 10)
    delete_records(admin, name, 5)
    with takes_at_most(10), pytest.raises(OffsetsDeleted) as caught:
        offsets(reader, name, *wanted)
    assert (caught.value.topic, caught.value.partition) == (name, 0)
    assert caught.value.offset == wanted[0][0]
    assert caught.value.exit_code.retryable
    assert offsets(reader, name, (5, 6), (9, 10)) == [5, 9]


def test_a_missing_topic_raises_topic_missing(reader: KafkaLogReader, admin: AdminClient) -> None:
    with takes_at_most(20), pytest.raises(TopicMissing):
        offsets(reader, "no-such-topic", (0, 1))
    assert "no-such-topic" not in admin.list_topics(timeout=10).topics


def test_a_missing_partition_raises_topic_missing(
    reader: KafkaLogReader, topic: TopicFactory
) -> None:
    with takes_at_most(20), pytest.raises(TopicMissing):
        list(reader.read(topic(), COMMITTED, {7: spans((0, 1))}))


def test_a_dead_broker_raises_kafka_unavailable_after_the_timeout() -> None:
    (port,) = free_ports("127.0.0.1", 1)
    reader = KafkaLogReader({"bootstrap.servers": f"127.0.0.1:{port}"}, progress_timeout_s=2)
    with takes_at_most(8), pytest.raises(KafkaUnavailable) as caught:
        offsets(reader, "events", (3, 5))
    assert "events[0] from offset 3" in caught.value.operation
    assert "refused" in caught.value.reason
    assert caught.value.exit_code.retryable


def test_offsets_past_the_end_of_the_log_raise_kafka_unavailable_after_the_timeout(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """An unclean election removes such offsets; they are not gaps."""
    name = topic()
    produce_values(broker.bootstrap, name, 3)
    reader = KafkaLogReader({"bootstrap.servers": broker.bootstrap}, progress_timeout_s=2)
    with takes_at_most(8), pytest.raises(KafkaUnavailable):
        offsets(reader, name, (0, 5))


def test_settings_that_librdkafka_rejects_raise_kafka_refused() -> None:
    reader = KafkaLogReader({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "nonsense"})
    with pytest.raises(KafkaRefused) as caught:
        offsets(reader, "events", (0, 1))
    assert "security.protocol" in caught.value.reason


# -- side effects --------------------------------------------------------------------------------


def test_s1_reading_creates_no_consumer_group(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """I6. No group exists during the read either."""
    name = topic()
    produce_values(broker.bootstrap, name, 2_000)
    before = group_names(broker.bootstrap)
    reading = reader.read(name, COMMITTED, {0: spans((0, 2_000))})
    next(reading)
    assert group_names(broker.bootstrap) == before
    assert len(list(reading)) == 1_999
    assert group_names(broker.bootstrap) == before


def test_reading_prints_nothing_to_the_terminal(
    reader: KafkaLogReader,
    broker: BrokerStatus,
    topic: TopicFactory,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 3)
    capfd.readouterr()
    assert offsets(reader, name, (0, 3)) == [0, 1, 2]
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")


# -- brief reads -----------------------------------------------------------------------------------


def read_briefly(
    reader: KafkaLogReader, topic: str, end: int, *, seconds: float = 10.0, size: int = 10**6
) -> tuple[list[int], int]:
    """Return the offsets of the records of `[0, end)`, and the first offset that was not read."""
    span = Span(0, end)
    found, unread = reader.read_briefly(topic, COMMITTED, 0, span, seconds=seconds, size=size)
    return [record.offset for record in found], unread


def test_a_brief_read_ends_behind_aborted_records_and_markers(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    groups = group_names(broker.bootstrap)
    produce_values(broker.bootstrap, name, 2)
    produce_aborted(broker.bootstrap, name, [Record()] * 3)
    assert read_briefly(reader, name, 6) == ([0, 1], 6)
    assert group_names(broker.bootstrap) == groups


def test_a_brief_read_ends_behind_the_record_that_reaches_the_size(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    produce_records(broker.bootstrap, name, [Record(value=b"x" * 100)] * 4)
    assert read_briefly(reader, name, 4, size=150) == ([0, 1], 2)
    assert read_briefly(reader, name, 4, size=1) == ([0], 1)


def test_a_brief_read_ends_in_time(
    reader: KafkaLogReader, broker: BrokerStatus, topic: TopicFactory
) -> None:
    name = topic()
    produce_values(broker.bootstrap, name, 2)
    assert read_briefly(reader, name, 2, seconds=0) == ([], 0)
    (port,) = free_ports("127.0.0.1", 1)
    silent = KafkaLogReader({"bootstrap.servers": f"127.0.0.1:{port}"})
    with takes_at_most(5):
        assert read_briefly(silent, name, 2, seconds=0.2) == ([], 0)

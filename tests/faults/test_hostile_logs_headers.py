"""Hostile logs: header names that are not UTF-8, many headers, compression, large records."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.support.lake import Lake
from tests.support.raw_batches import RawRecord, produce_raw
from tests.support.transactions import produce_values
from tidemark.local.broker import BrokerStatus
from tidemark.local.producer import producer_settings

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.faults]

_ANY_TIME = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
}
NAMES = [b"\xff\xfe", b"\xed\xa0\x80", b"a\x00b", b"", b"\xef\xbf\xbd", b"\x01\x1f\x7f", b"name"]
"""Two names that are not UTF-8, a zero byte, empty, U+FFFD, control characters, a usual name."""
READ = ["\ufffd\ufffd", "\ufffd", "a\x00b", "", "\ufffd", "\x01\x1f\x7f", "name"]
"""The same names as Kafka's Java client decodes them."""


@pytest.mark.parametrize("timestamp_ms", [1_767_225_600_000, 2**63 - 1, -62_135_596_800_000])
def test_header_names_that_are_not_utf8_land_as_java_reads_them(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, timestamp_ms: int
) -> None:
    """`verify` compares the rest of the record and counts headers that it cannot compare."""
    pipeline = lake.of(topic(config=_ANY_TIME))
    for name in NAMES:
        headers = ((name, b"1"), (b"other", None), (name, b"\xff"))
        record = RawRecord(key=b"k", headers=headers, timestamp_ms=timestamp_ms)
        produce_raw(broker.bootstrap, pipeline.spec.topic, [record])
    assert pipeline.run("test").landing.records == len(NAMES)
    rows = sorted(lake.rows(), key=lambda row: row["offset"])
    expected = list(READ)
    if timestamp_ms == 2**63 - 1 or timestamp_ms < 0:
        # The driver writes these rows, and librdkafka ends a name at a zero byte.
        expected[2] = "a"
    assert [[(h["key"], h["value"]) for h in row["headers"]] for row in rows] == [
        [(name, b"1"), ("other", None), (name, b"\xff")] for name in expected
    ]
    done = pipeline.verify.verify()
    done.check()
    assert [each.headers_unread for each in done.partitions] == [2]


def test_status_and_next_run_read_records_with_header_names_that_are_not_utf8(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The status reads the first unread record, the next run the last landed one."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 1)
    pipeline.run("test")
    record = RawRecord(headers=((b"\xff", b"1"),), timestamp_ms=1_767_225_600_000)
    produce_raw(broker.bootstrap, pipeline.spec.topic, [record])
    assert pipeline.status().lag == 1
    assert pipeline.run("second").landing.records == 1
    produce_values(broker.bootstrap, pipeline.spec.topic, 1)
    assert pipeline.run("third").landing.records == 1


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_with_many_headers_land(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge, codec: str
) -> None:
    pipeline = lake.of(topic())
    settings = producer_settings({"bootstrap.servers": broker.bootstrap})
    producer = Producer({**settings, "compression.type": codec})
    headers = [(f"h{number}", b"%d" % number) for number in range(2_000)]
    producer.produce(pipeline.spec.topic, headers=headers)
    for number in range(1_000):
        producer.produce(pipeline.spec.topic, value=b"%d" % number * 50)
    assert producer.flush(30) == 0
    pipeline.run("test")
    assert table_judge.check(pipeline).records == 1_001


def test_a_record_of_50_mb_lands(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    """The record is larger than a fetch of either reader."""
    limit = 60_000_000
    pipeline = lake.of(topic(config={"max.message.bytes": str(limit)}))
    settings = producer_settings({"bootstrap.servers": broker.bootstrap})
    producer = Producer({**settings, "message.max.bytes": limit, "compression.type": "none"})
    for size in (10, 50_000_000, 10):
        producer.produce(pipeline.spec.topic, value=bytes(size))
        assert producer.flush(60) == 0
    pipeline.run("test")
    assert table_judge.check(pipeline).records == 3
    pipeline.verify.verify().check()

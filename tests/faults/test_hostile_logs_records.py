"""Hostile logs: records with unusual content, timestamps, sizes and offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.support.kafka_judge import log_ranges, read_all
from tests.support.lake import Lake
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records, produce_values
from tidemark.local.broker import Broker, BrokerConfig, BrokerStatus
from tidemark.local.broker_settings import data_folder
from tidemark.spec.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

# -- null and empty ------------------------------------------------------------------------------

EDGE_CASES = [
    Record(key=None, value=None),
    Record(key=b"", value=b""),
    Record(key=b"tombstone", value=None),
    Record(key=None, value=b"no key"),
    Record(key=b"\x00\xff", value=bytes(range(256))),
    Record(headers=(("absent", None), ("empty", b""), ("binary", b"\x00\xff"))),
    Record(headers=(("twice", b"first"), ("other", b"x"), ("twice", b"second"), ("twice", None))),
    Record(headers=(("", b"no name"), ("näme", "wört".encode()))),
]


def test_s4_null_and_empty_keys_values_and_headers_land_exactly(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    pipeline = lake.of(topic())
    produce_records(broker.bootstrap, pipeline.spec.topic, EDGE_CASES)
    pipeline.run("test")
    assert table_judge.check(pipeline).records == len(EDGE_CASES)
    assert [(r.key, r.value, r.headers) for r in lake.delivered_rows()] == [
        r[:3] for r in EDGE_CASES
    ]


# -- time ----------------------------------------------------------------------------------------

TIMES_MS = [-1, -86_400_001, 1, 1_767_225_600_999, 4_102_444_800_001]


@pytest.mark.faults
def test_s4_timestamps_of_minus_one_and_of_any_millisecond_land_exactly(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    """-1 is Kafka's value for a record without a timestamp."""
    anytime = {"message.timestamp.after.max.ms": str(2**62), "retention.ms": "-1"}
    pipeline = lake.of(topic(config=anytime))
    records = [Record(timestamp_ms=time_ms) for time_ms in TIMES_MS]
    produce_records(broker.bootstrap, pipeline.spec.topic, records)
    pipeline.run("test")
    assert table_judge.check(pipeline).records == len(TIMES_MS)
    assert [record.timestamp_ms for record in lake.delivered_rows()] == TIMES_MS


@pytest.mark.faults
def test_s4_log_append_time_lands_with_its_timestamp_type(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    pipeline = lake.of(topic(config={"message.timestamp.type": "LogAppendTime"}))
    produce_records(broker.bootstrap, pipeline.spec.topic, [Record(timestamp_ms=1)] * 3)
    pipeline.run("test")
    table_judge.check(pipeline)
    assert {record.timestamp_type for record in lake.delivered_rows()} == {2}
    assert min(record.timestamp_ms for record in lake.delivered_rows()) > 1


# -- size ----------------------------------------------------------------------------------------

MIB = 1024 * 1024
BATCH_OVERHEAD = 74
"""Bytes of a record batch around one value of some MiB without key and headers."""


@pytest.mark.faults
def test_records_up_to_the_topics_maximum_size_land(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    """They are larger than a fetch of the reader."""
    limit = 6 * MIB
    pipeline = lake.of(topic(config={"max.message.bytes": str(limit)}))
    name = pipeline.spec.topic
    largest = limit - BATCH_OVERHEAD

    def produce(size: int, count: int = 1) -> None:
        values = [Record(value=bytes([number]) * size) for number in range(count)]
        for value in values:
            produce_records(broker.bootstrap, name, [value], max_bytes=2 * limit)

    produce(MIB, count=5)
    produce(largest, count=2)
    produce(1)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        produce(largest + 1)
    assert pipeline.run("test").landing.records == 8
    assert table_judge.check(pipeline).records == 8
    sizes = [len(record.value or b"") for record in lake.delivered_rows()]
    assert sizes == [MIB] * 5 + [largest] * 2 + [1]


# -- offsets past 2^31 ---------------------------------------------------------------------------

START = 2**31 - 8


@pytest.fixture
def old_log(layout: Layout, tmp_path: Path) -> Iterator[BrokerStatus]:
    """Start a broker whose topic `old` begins at offset 2^31 - 8 in partition 0.

    The name of an empty partition's segment is its first offset; it is renamed between two starts.
    """
    config = BrokerConfig(home=tmp_path / "broker", jars=layout.kafka_jars, heap_mb=256)
    embedded = Broker(config)
    try:
        status = embedded.start()
        admin = AdminClient({"bootstrap.servers": status.bootstrap, "log_level": 0})
        make_topic(admin, status.bootstrap, "old", partitions=2)
        embedded.stop()
        partition = data_folder(config.home, 1) / "old-0"
        for file in partition.glob(f"{0:020}.*"):
            if file.suffix == ".log":
                file.rename(partition / f"{START:020}.log")
            else:
                file.unlink()
        yield embedded.start()
    finally:
        embedded.stop()


@pytest.mark.faults
def test_s4_offsets_past_two_to_the_31st_land_exactly(
    old_log: BrokerStatus, spark: SparkSession, tmp_path: Path, table_judge: TableJudge
) -> None:
    """Covers plan, Spark, table, file statistics and control table."""
    lake = Lake(
        session=spark,
        root=tmp_path / "lake",
        connection={"bootstrap.servers": old_log.bootstrap},
    )
    pipeline = lake.of("old", records_per_run=12)
    produce_values(old_log.bootstrap, "old", 20)
    assert log_ranges(old_log.bootstrap, "old") == {0: (START, START + 20), 1: (0, 0)}
    produce_values(old_log.bootstrap, "old", 2, partition=1)

    first, second = pipeline.run("across"), pipeline.run("beyond")
    ranges = {(r.partition, r.start, r.end) for d in (first, second) for r in d.plan.ranges}
    assert ranges == {(0, START, START + 10), (1, 0, 2), (0, START + 10, START + 20)}
    assert pipeline.committed() == {0: START + 20, 1: 2}
    assert table_judge.check(pipeline).records == 22
    offsets = [record.offset for record in pipeline.delivered_rows() if record.partition == 0]
    assert offsets == list(range(START, START + 20))
    assert [type(row["offset"]) for row in pipeline.rows()] == [int] * 22

    assert statistics(pipeline) == [(0, 1), (START, START + 9), (START + 10, START + 19)]
    counts = [(c.start, c.end, c.records) for c in second.landing.counts]
    assert counts == [(START + 10, START + 20, 10)]
    produce_values(old_log.bootstrap, "old", 1)
    assert pipeline.run("after").landing.records == 1
    assert pipeline.delivered_rows() == sorted(read_all(old_log.bootstrap, "old"))


def statistics(pipeline: Lake) -> list[tuple[int, int]]:
    """Return the smallest and largest offset of each file in the table's log."""
    import pyarrow as pa

    actions = pa.table(DeltaTable(pipeline.uri).get_add_actions(flatten=True)).to_pylist()
    return sorted((action["min.offset"], action["max.offset"]) for action in actions)

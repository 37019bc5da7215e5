"""Tests that every timestamp lands exactly, in any time zone of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.kafka_judge import read_all
from tests.support.lake import Lake
from tests.support.raw_batches import RawRecord, produce_raw
from tidemark.bronze.ingest.spark_exact import bronze_schema
from tidemark.delta.columns import BRONZE_SCHEMA
from tidemark.local.broker import BrokerStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANY_TIME = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_1, YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000
EARLY_MS = [
    YEAR_1,
    # 1500-02-29 and 1500-03-01 of the Julian calendar: Spark merges both days.
    -14_825_721_600_000,
    -14_825_635_200_000,
    -12_219_292_800_001,
    # 1892: before the first offset of Berlin and New York in java.util.TimeZone.
    -2_461_449_600_123,
    -2_208_988_800_000,
    -1,
    0,
    1,
    YEAR_10000 - 1,
]
"""Timestamps that Spark reads, some of them wrongly."""
FAR_MS = [
    YEAR_1 - 1,
    YEAR_10000,
    9_223_372_036_854_775,
    -9_223_372_036_854_775,
    9_223_372_036_854_776,
    -9_223_372_036_854_776,
    2**63 - 1,
    -(2**63),
]
"""Timestamps outside the years 1 to 9999; Spark fails at some of them."""


@contextmanager
def default_zone(session: SparkSession, name: str) -> Iterator[None]:
    zones = session._jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(name))
    try:
        yield
    finally:
        zones.setDefault(before)


def produce(lake: Lake, timestamps: list[int], partition: int = 0) -> None:
    records = [
        RawRecord(key=b"%d" % n, headers=((b"n", b"%d" % n),), timestamp_ms=timestamp)
        for n, timestamp in enumerate(timestamps)
    ]
    # One batch for each record, because differences to the first timestamp have 64 bits.
    for record in records:
        produce_raw(str(lake.connection["bootstrap.servers"]), lake.spec.topic, [record], partition)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize(
    "zone",
    [
        pytest.param("UTC", marks=pytest.mark.faults),
        "Europe/Berlin",
        pytest.param("America/New_York", marks=pytest.mark.faults),
    ],
)
def test_early_timestamps_land_exactly(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, zone: str
) -> None:
    pipeline = lake.of(topic(config=ANY_TIME))
    produce(pipeline, EARLY_MS)
    with default_zone(lake.session, zone):
        assert pipeline.run("test").landing.records == len(EARLY_MS)
    assert [record.timestamp_ms for record in lake.delivered_rows()] == EARLY_MS
    assert lake.delivered_rows() == read_all(broker.bootstrap, pipeline.spec.topic)
    assert {row["timestamp_out_of_range_ms"] for row in lake.rows()} == {None}
    pipeline.verify.verify().check()


@pytest.mark.broker
@pytest.mark.spark
def test_timestamps_without_a_date_land_beside_all_other_records(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """One partition has overflows of Spark's microseconds, another has early timestamps."""
    pipeline = lake.of(topic(partitions=3, config=ANY_TIME), records_per_task=6)
    usual = [1_767_225_600_000 + n for n in range(8)]
    produced = {0: [*usual, *FAR_MS, 5, *FAR_MS, *usual], 1: usual, 2: EARLY_MS}
    for partition, timestamps in produced.items():
        produce(pipeline, timestamps, partition)
    done = pipeline.run("test")
    judge = read_all(broker.bootstrap, pipeline.spec.topic)
    assert done.landing.records == len(judge) == 2 * 8 + 2 * len(FAR_MS) + 1 + 8 + len(EARLY_MS)
    assert lake.delivered_rows() == judge
    for row in lake.rows():
        assert (row["timestamp"] is None) == (row["timestamp_out_of_range_ms"] is not None)
    assert {row["timestamp_out_of_range_ms"] for row in lake.rows()} == {None, *FAR_MS}
    pipeline.verify.verify().check()

    # The driver reads with librdkafka, as the judge does. So compare with the produced values too.
    sent = [
        (ms, b"%d" % n) for milliseconds in produced.values() for n, ms in enumerate(milliseconds)
    ]
    rows = sorted(lake.rows(), key=lambda row: (row["partition"], row["offset"]))
    assert [row["key"] for row in rows] == [key for _, key in sent]
    assert [row["headers"] for row in rows] == [[{"key": "n", "value": key}] for _, key in sent]
    for read in (read_by_spark, read_by_duckdb, read_by_polars, read_by_pandas):
        assert read(lake) == [ms for ms, _ in sent], read.__name__


def read_by_spark(lake: Lake) -> list[int]:
    """Return the timestamps in ms by the expression of docs/explanation/guarantees.md."""
    rows = lake.session.sql(
        "SELECT coalesce(unix_millis(timestamp), timestamp_out_of_range_ms) AS ms "
        f"FROM delta.`{lake.uri}` ORDER BY partition, offset"
    )
    return [row.ms for row in rows.collect()]


def read_by_duckdb(lake: Lake) -> list[int]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("bronze", pa.table(DeltaTable(lake.uri).scan()))
        rows = connection.execute(
            "SELECT coalesce(epoch_ms(timestamp), timestamp_out_of_range_ms) FROM bronze "
            'ORDER BY partition, "offset"'
        )
        return [ms for (ms,) in rows.fetchall()]


def read_by_polars(lake: Lake) -> list[int]:
    rows = polars.scan_delta(str(lake.uri)).sort("partition", "offset").collect()
    moments = rows["timestamp"].dt.timestamp("ms")
    return rows.with_columns(moments.fill_null(rows["timestamp_out_of_range_ms"]))[
        "timestamp"
    ].to_list()


def read_by_pandas(lake: Lake) -> list[int]:
    exact_types = {pa.int64(): pandas.Int64Dtype()}
    rows = pa.table(DeltaTable(lake.uri).scan()).to_pandas(types_mapper=exact_types.get)
    rows = rows.sort_values(["partition", "offset"])
    return [
        int(far) if moment is pandas.NaT else (moment - EPOCH) // timedelta(milliseconds=1)
        for moment, far in zip(rows["timestamp"], rows["timestamp_out_of_range_ms"], strict=True)
    ]


@pytest.mark.broker
@pytest.mark.spark
def test_a_plan_of_overflows_alone_lands(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Nothing is left for Spark to read."""
    pipeline = lake.of(topic(config=ANY_TIME))
    produce(pipeline, [1_767_225_600_000_000_000, 1_767_225_600_000_000_001])
    assert pipeline.run("test").landing.records == 2
    assert lake.delivered_rows() == read_all(broker.bootstrap, pipeline.spec.topic)
    assert [path.name for path in lake.uri.glob("plan-1-*")] == [
        DeltaTable(lake.uri).file_uris()[0].split("/")[-2]
    ]


def test_rows_of_the_driver_have_the_columns_of_the_table() -> None:
    """The order is equal too."""
    expected = pa.schema(BRONZE_SCHEMA.to_arrow())
    assert [(f.name, f.type) for f in bronze_schema()] == [(f.name, f.type) for f in expected]

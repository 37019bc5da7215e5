"""Tests that every reader of bronze tables returns the same rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import duckdb
import polars
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.support.kafka_judge import read_all
from tests.support.lake import Lake
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records
from tidemark.local.broker import BrokerStatus
from tidemark.local.producer import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COLUMNS = [
    "key",
    "value",
    "headers",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_out_of_range_ms",
    "timestamp_type",
    "topic_id",
    "plan_sequence",
    "ingested_at",
]


@pytest.fixture(scope="module")
def bronze(
    spark: SparkSession,
    broker: BrokerStatus,
    admin: AdminClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Lake:
    """Return a table of orders and of records with nulls and empty values, in two plans."""
    topic = make_topic(admin, broker.bootstrap, f"readers-{uuid4().hex}", partitions=3)
    connection = {"bootstrap.servers": broker.bootstrap}
    root = tmp_path_factory.mktemp("readers")
    lake = Lake(session=spark, root=root, connection=connection).of(topic)
    produce(lake.connection, "orders", topic=lake.spec.topic, records=100)
    lake.run("first")
    edge_cases = [
        Record(key=None, value=None),
        Record(key=b"", value=b""),
        Record(key=b"\x00\xff", headers=(("h", None), ("h", b""), ("h", b"\xff"))),
    ]
    produce_records(broker.bootstrap, lake.spec.topic, edge_cases)
    lake.run("second")
    return lake


def plain(value: Any) -> Any:
    """Return a value as a Python type, with times in UTC."""
    match value:
        case datetime():
            # Spark returns local times without a zone.
            return value.astimezone(UTC)
        case bytearray() | memoryview():
            return bytes(value)
        case str() | bytes():
            return value
        case Mapping():
            return tuple(plain(inner) for inner in value.values())
        case Iterable():
            return tuple(plain(inner) for inner in value)
        case _:
            return value


def ordered(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    where = COLUMNS.index("partition"), COLUMNS.index("offset")
    return sorted((plain(row) for row in rows), key=lambda row: tuple(row[i] for i in where))


def test_spark_delta_rs_duckdb_and_polars_read_equal_rows(
    bronze: Lake, broker: BrokerStatus
) -> None:
    table = DeltaTable(bronze.uri)
    scanned = pa.table(table.scan()).select(COLUMNS)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("bronze", scanned)
        by_duckdb = ordered(connection.execute("SELECT * FROM bronze").fetchall())
    by_delta_rs = ordered(row.values() for row in scanned.to_pylist())
    by_polars = ordered(polars.scan_delta(bronze.uri).select(COLUMNS).collect().rows())
    by_spark = ordered(
        bronze.session.read.format("delta").load(str(bronze.uri)).select(*COLUMNS).collect()
    )

    assert len(by_delta_rs) == len(read_all(broker.bootstrap, bronze.spec.topic)) == 103
    assert by_spark == by_delta_rs
    assert by_polars == by_delta_rs
    assert by_duckdb == by_delta_rs
    keys = {row[COLUMNS.index("key")] for row in by_delta_rs}
    assert {None, b"", b"\x00\xff"} <= keys


def test_s4_the_schema_of_the_table_has_all_columns_and_types(bronze: Lake) -> None:
    schema = json.loads(DeltaTable(bronze.uri).schema().to_json())
    types = {field["name"]: field["type"] for field in schema["fields"]}
    assert list(types) == COLUMNS
    headers = types.pop("headers")
    assert types == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "integer",
        "offset": "long",
        "timestamp": "timestamp",
        "timestamp_out_of_range_ms": "long",
        "timestamp_type": "integer",
        "topic_id": "string",
        "plan_sequence": "long",
        "ingested_at": "timestamp",
    }
    assert headers["type"] == "array"
    inner = {field["name"]: field["type"] for field in headers["elementType"]["fields"]}
    assert inner == {"key": "string", "value": "binary"}


READ = """
import sys
import pyarrow as pa
import polars
from deltalake import DeltaTable
table = DeltaTable(sys.argv[1])
assert pa.table(table.scan()).num_rows == polars.read_delta(sys.argv[1]).height == 103
"""


def test_processes_that_read_the_table_exit_with_code_zero(bronze: Lake) -> None:
    """The pages recommend these ways to read."""
    running = [
        subprocess.Popen([sys.executable, "-c", READ, bronze.uri], stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, errors

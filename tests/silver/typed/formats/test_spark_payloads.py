"""Payloads that Spark decodes, with Python workers for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tests.support import json_reading
from tests.support.json_cases import BAD, GOOD, json_spec
from tests.support.json_reading import spec_of
from tests.support.typed_values import as_in_arrow
from tidemark.silver.typed.formats.spark_payloads import SETTINGS, detail, raw, reason, with_decoded
from tidemark.spec.decode import REST, Format, Part, PayloadSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def read(
    spark: SparkSession, spec: PayloadSpec, payloads: Sequence[bytes | None]
) -> list[dict[str, Any]]:
    """Return value, reason and detail of each payload; a failed row has no value."""
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    rows = spark.createDataFrame(
        [(number, payload) for number, payload in enumerate(payloads)],
        f"number int, {raw(Part.VALUE)} binary",
    )
    decoded = with_decoded(rows, Part.VALUE, spec).select(
        "number",
        F.when(F.col(reason(Part.VALUE)).isNull(), F.col("value")).alias("value"),
        F.col(reason(Part.VALUE)).alias("reason"),
        F.col(detail(Part.VALUE)).alias("detail"),
    )
    found = [row.asDict(recursive=True) for row in decoded.orderBy("number").collect()]
    return [{name: row[name] for name in ("value", "reason", "detail")} for row in found]


def test_spark_returns_what_the_reader_returns(spark: SparkSession) -> None:
    """Covers all types, nulls, and the reasons of invalid payloads."""
    payloads = [None, *(payload for payload, _ in (*GOOD, *BAD))]
    for spec in (json_spec(), spec_of({"text": "string"}, keeps_rest=True)):
        column = spec.column
        assert column is not None
        for found, row in zip(
            read(spark, spec, payloads), json_reading.read(spec, payloads), strict=True
        ):
            value = as_in_arrow(found["value"], column)
            assert (value, found["reason"], found["detail"]) == (
                *(row["value"], row["reason"], row["detail"]),
            )
    (row,) = read(spark, spec, [b'{"text": "a", "other": {"b": 1.50}}'])
    assert row["value"] == {"text": "a", REST: '{"other":{"b":1.50}}'}


def test_a_missing_payload_is_null_without_a_reason(spark: SparkSession) -> None:
    """It is a tombstone, or a record without a key."""
    for spec in (json_spec(), PayloadSpec(format=Format.STRING), PayloadSpec()):
        assert read(spark, spec, [None]) == [dict.fromkeys(("value", "reason", "detail"))]


def test_binary_accepts_any_bytes_and_string_only_utf8(spark: SparkSession) -> None:
    """The format `string` quarantines other bytes."""
    payloads = [b"", "Grüße".encode(), b"\xff", b"\xed\xa0\x80"]
    text = read(spark, PayloadSpec(format=Format.STRING), payloads)
    assert [row["reason"] for row in text] == [None, None, "not_utf8", "not_utf8"]
    assert [row["value"] for row in text[:2]] == ["", "Grüße"]
    kept = read(spark, PayloadSpec(), payloads)
    assert [(bytes(row["value"]), row["reason"]) for row in kept] == [(p, None) for p in payloads]


def test_timestamps_are_utc(spark: SparkSession) -> None:
    """The time zone of the machine does not matter."""
    (row,) = read(spark, json_spec(), [b'{"at": "2026-07-01T12:00:00Z"}'])
    assert row["value"]["at"].astimezone(UTC) == datetime(2026, 7, 1, 12, tzinfo=UTC)

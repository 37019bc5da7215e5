"""Tests of valid and invalid payloads; one Spark query decodes all cases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tests.support.json_cases import BAD, GOOD, NONE, NOT_JSON, json_spec
from tests.support.typed_values import differences
from tidemark.silver.typed.formats import spark_json
from tidemark.silver.typed.formats.spark_payloads import SETTINGS, detail, raw, reason, with_decoded
from tidemark.spec.decode import REST, Format, Part, PayloadSpec
from tidemark.spec.fields import ListOf, Struct
from tidemark.spec.type_parsing import parse_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def read(
    spark: SparkSession,
    spec: PayloadSpec,
    payloads: Sequence[bytes | None],
    *,
    names_faults: bool = False,
) -> list[Any]:
    """Return value, reason, detail and its path of each payload; a failed row has no value.

    Checks that decoding without Spark returns the same values.
    """
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    rows = spark.createDataFrame(
        [(number, payload) for number, payload in enumerate(payloads)],
        f"number int, {raw(Part.VALUE)} binary",
    )
    decoded = with_decoded(rows, Part.VALUE, spec, names_faults=names_faults).select(
        "number",
        F.when(F.col(reason(Part.VALUE)).isNull(), F.col("value")).alias("value"),
        F.col(reason(Part.VALUE)).alias("reason"),
        F.col(detail(Part.VALUE)).alias("detail"),
    )
    found = [row.asDict(recursive=True) for row in decoded.orderBy("number").collect()]
    for payload, row in zip(payloads, found, strict=True):
        if row["reason"] is None:
            assert differences(payload, spec, row["value"]) == [], payload
    return [{**row, "path": row["detail"] and row["detail"].split(": ")[0]} for row in found]


def test_valid_json_is_decoded_exactly(spark: SparkSession) -> None:
    """Covers digits, times and nulls."""
    decoded = read(spark, json_spec(), [payload for payload, _ in GOOD])
    wrong = {
        payload: row
        for (payload, expected), row in zip(GOOD, decoded, strict=True)
        if (row["value"], row["reason"], row["path"]) != ({**NONE, **expected}, None, None)
    }
    assert wrong == {}


def test_invalid_json_has_a_reason_and_a_detail(spark: SparkSession) -> None:
    """No value is rounded, truncated, guessed or replaced by null."""
    payloads = [payload for payload, _ in BAD]
    decoded = read(spark, json_spec(), payloads, names_faults=True)
    wrong = {
        payload: row
        for (payload, expected), row in zip(BAD, decoded, strict=True)
        if (row["reason"], row["path"]) != expected
    }
    assert wrong == {}
    # Without names of faults, the same payloads are refused.
    quick = read(spark, json_spec(), payloads)
    assert [row["reason"] is not None for row in quick] == [True] * len(BAD)
    assert {row["path"] for row in quick} <= {None, *(row["path"] for row in decoded)}


def test_details_of_json_name_the_expected_type_and_the_type_found_without_values(
    spark: SparkSession,
) -> None:
    """A text with a name twice is no variant, so the type of its value is unknown."""
    schema = parse_type(
        {
            "n": "long",
            "price": "decimal(18,4)",
            "text": "string",
            "at": "timestamp",
            "in": {"flag": "boolean", "it's": "long"},
            "tags": ["long"],
            "legs": [{"price": "double"}],
        }
    )
    assert isinstance(schema, Struct)
    cases = {
        '{"n": "secret"}': "n: expected long, found text",
        '{"n": 1.5}': "n: expected long, found another number",
        '{"n": false}': "n: expected long, found boolean",
        '{"price": "12,50"}': "price: expected decimal(18,4), found text",
        '{"price": 1.123456}': "price: expected decimal(18,4), found another number",
        '{"price": {"secret": 1}}': "price: expected decimal(18,4), found object",
        '{"text": "\\ud800"}': "text: expected text, found another text",
        '{"at": "2026"}': "at: expected timestamp, found another text",
        '{"at": 5}': "at: expected timestamp, found number",
        '{"in": 5}': "in: expected object, found number",
        '{"in": {"flag": 1}}': "in.flag: expected boolean, found number",
        '{"in": {"it\'s": []}}': "in.it's: expected long",
        '{"tags": 5}': "tags[]: expected list of long, found number",
        '{"tags": ["secret"]}': "tags[]: expected list of long, found another list",
        '{"legs": [{"price": true}]}': "legs[]: expected list of object, found another list",
        '{"n": 1, "n": "secret"}': "n: expected long",
    }
    spec = PayloadSpec(format=Format.JSON, schema=schema)
    rows = read(spark, spec, [each.encode() for each in cases], names_faults=True)
    assert dict(zip(cases, (row["detail"] for row in rows), strict=True)) == cases


def test_extreme_json_is_quarantined_and_fails_no_job(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payloads are deeper or longer than Spark's parser accepts."""
    monkeypatch.setitem(spark_json._OPTIONS, "maxStringLen", "1000")
    deep = b"[" * 1_100 + b"]" * 1_100
    poison = [b'{"text": %s}' % deep, b'{"other": %s}' % deep, b'{"legs": %s}' % deep, deep]
    poison += [b'{"text": "%s"}' % (b"x" * 1_001), b'{"text": "after"}']
    decoded = read(spark, json_spec(), poison, names_faults=True)
    assert [(row["reason"], row["path"]) for row in decoded] == [
        *[NOT_JSON] * 4,
        ("malformed", "text"),
        (None, None),
    ]


def test_the_last_value_of_a_repeated_name_counts_at_every_level(spark: SparkSession) -> None:
    """The reference page documents it. With `keep_rest`, the same holds for unnamed fields."""
    leg = Struct((("a", "long"), ("b", "long")))
    schema = Struct((("n", "long"), ("leg", leg), ("legs", ListOf(leg)), ("text", "string")))
    payloads: dict[bytes, dict[str, Any]] = {
        b'{"n": 1, "n": 2}': {"n": 2},
        b'{"n": 1, "n": null}': {},
        b'{"leg": {"a": 1, "a": 2}}': {"leg": {"a": 2, "b": None}},
        # The second object replaces the first one; its fields are not merged.
        b'{"leg": {"a": 1}, "leg": {"b": 2}}': {"leg": {"a": None, "b": 2}},
        b'{"legs": [{"a": 1, "a": 3}]}': {"legs": [{"a": 3, "b": None}]},
        b'{"n": 1, "\\u006e": 2}': {"n": 2},
    }
    nothing = dict.fromkeys(("n", "leg", "legs", "text"))
    decoded = read(spark, PayloadSpec(format=Format.JSON, schema=schema), [*payloads])
    assert {
        text: (row["value"], row["reason"]) for text, row in zip(payloads, decoded, strict=True)
    } == {text: ({**nothing, **each}, None) for text, each in payloads.items()}
    spec = PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),)), keeps_rest=True)
    (row,) = read(spark, spec, [b'{"n": 1, "x": 1, "x": 2}'])
    assert json.loads(row["value"][REST]) == {"x": 2}


def test_unnamed_fields_are_kept_as_json(spark: SparkSession) -> None:
    """No field is lost, regardless of its value. Invalid objects stay invalid."""
    spec = PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),)), keeps_rest=True)
    kept = {
        b'{"n": 1}': None,
        b"{}": None,
        b'{"N": 1, "a.b": "x", "": null}': '{"N":1,"a.b":"x","":null}',
        b'{"n": 1.0, "t": "1", "d": 12345678901234567890.5}': (
            '{"t":"1","d":12345678901234567890.5}'
        ),
        b'{"x": [{"y": true}, 1e2], "n": 2}': '{"x":[{"y":true},100.0]}',
        # A name twice: at the top level, and below.
        b'{"x": 1, "x": 2}': '{"x":1,"x":2}',
        b'{"x": {"y": 1, "y": 2}, "z": "s"}': r'{"x":"{\"y\":1,\"y\":2}","z":"s"}',
    }
    decoded = read(spark, spec, list(kept))
    assert [row["value"]["_rest"] for row in decoded] == list(kept.values())
    deep = b"[" * 1_100 + b"]" * 1_100
    bad = [b'{"x": %s}' % deep, b'{"x": 1} more', b'{"x": NaN}', b'{"n": "text", "x": 1}', b"[1]"]
    assert [row["value"] for row in read(spark, spec, bad)] == [None] * len(bad)


def test_a_missing_payload_is_null_without_a_reason(spark: SparkSession) -> None:
    """It is a tombstone, or a record without a key."""
    for spec in (json_spec(), PayloadSpec(format=Format.STRING), PayloadSpec()):
        assert read(spark, spec, [None]) == [
            {"number": 0, "value": None, "reason": None, "detail": None, "path": None}
        ]


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

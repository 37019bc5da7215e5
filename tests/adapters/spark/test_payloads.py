"""What is decoded, and what is not: each case is one payload in one Spark query."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.adapters.spark.payloads import SETTINGS, detail, raw, reason, with_decoded
from tidemark.core.decoding import Format, Part, PayloadSpec
from tidemark.core.fields import Struct, parse_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_SCHEMA = {
    "text": "string",
    "flag": "boolean",
    "small": "integer",
    "big": "long",
    "ratio": "double",
    "ratios": ["double"],
    "price": "decimal(18,4)",
    "wide": "decimal(28,2)",
    "day": "date",
    "at": "timestamp",
    "legs": [{"qty": "long", "on": "date"}],
    "days": ["date"],
    "inner": {"price": "decimal(4,2)"},
}
_NONE = dict.fromkeys(_SCHEMA)
_MALFORMED = ("malformed", None)

GOOD: Sequence[tuple[bytes, dict[str, Any]]] = [
    (b"{}", {}),
    (b' {"text": "a"} \n', {"text": "a"}),
    (b'{"other": 1, "text": null}', {}),
    ('{"text": "Grüße"}'.encode(), {"text": "Grüße"}),
    # What is no text is written anew.
    (b'{"text": 12.50}', {"text": "12.5"}),
    (b'{"text": {"a": 1}}', {"text": '{"a":1}'}),
    (
        b'{"flag": true, "small": -5, "big": 9223372036854775807}',
        {
            "flag": True,
            "small": -5,
            "big": 2**63 - 1,
        },
    ),
    (b'{"ratio": 1}', {"ratio": 1.0}),
    (b'{"ratio": 1.5e3}', {"ratio": 1500.0}),
    (b'{"price": 12.5}', {"price": Number("12.5000")}),
    (b'{"price": "12.50"}', {"price": Number("12.5000")}),
    (b'{"price": "1\xe2\x80\x99250.50"}', {"price": Number("1250.5000")}),
    (b'{"price": 1e2}', {"price": Number("100.0000")}),
    # A digit more than a double has.
    (b'{"price": 12345678901234.1234}', {"price": Number("12345678901234.1234")}),
    (b'{"price": 1.50000000}', {"price": Number("1.5000")}),
    (
        b'{"wide": 12345678901234567890123456.78}',
        {
            "wide": Number("12345678901234567890123456.78"),
        },
    ),
    (b'{"day": "2026-02-28"}', {"day": date(2026, 2, 28)}),
    (b'{"at": "2026-01-01T01:00:00+01:00"}', {"at": datetime(2026, 1, 1)}),
    (
        b'{"at": "2026-01-01 00:00:00.123456"}',
        {
            "at": datetime(2026, 1, 1, 0, 0, 0, 123456),
        },
    ),
    (
        b'{"legs": [{"qty": 1, "on": "2026-01-02"}, null]}',
        {
            "legs": [{"qty": 1, "on": date(2026, 1, 2)}, None],
        },
    ),
    (b'{"legs": []}', {"legs": []}),
    (b'{"days": ["2026-01-02", null]}', {"days": [date(2026, 1, 2), None]}),
    (b'{"inner": {"price": 1.25}}', {"inner": {"price": Number("1.25")}}),
    (b'{"inner": {}}', {"inner": {"price": None}}),
    (b'{"text": "}"}', {"text": "}"}),
    (b'{"text": "\xc3\xbc"}  ', {"text": "\xfc"}),
]

BAD: Sequence[tuple[bytes, tuple[str, str | None]]] = [
    (b"", _MALFORMED),
    (b" ", _MALFORMED),
    (b"null", _MALFORMED),
    (b"12", _MALFORMED),
    (b'"text"', _MALFORMED),
    (b'[{"text": "a"}]', _MALFORMED),
    (b'{"text": "a"', _MALFORMED),
    (b'{"text": "a"} x', _MALFORMED),
    (b'{"text": "a"}{"text": "b"}', _MALFORMED),
    (b'{"text": "a"}, {"text": "b"}', _MALFORMED),
    (b'{"text": "a"}], [{}', _MALFORMED),
    (b'{"text": "a"} }', _MALFORMED),
    (b'{"inner": {}} {}', _MALFORMED),
    (b'{"inner": {}}] x', _MALFORMED),
    (b'{"inner": {}', _MALFORMED),
    (b'{"text": "}', _MALFORMED),
    (b'{"text": "a"}]', _MALFORMED),
    (b',{"text": "a"}', _MALFORMED),
    (b"{'text': 'a'}", _MALFORMED),
    (b'{"flag": "true"}', _MALFORMED),
    (b'{"flag": 1}', _MALFORMED),
    (b'{"small": 2147483648}', _MALFORMED),
    (b'{"big": 9223372036854775808}', _MALFORMED),
    (b'{"big": 1.5}', _MALFORMED),
    (b'{"big": "1"}', _MALFORMED),
    (b'{"ratio": "1.5"}', _MALFORMED),
    (b'{"ratio": NaN}', _MALFORMED),
    (b'{"ratio": "Infinity"}', _MALFORMED),
    (b'{"price": "12,50"}', _MALFORMED),
    (b'{"price": "12\'50"}', _MALFORMED),
    (b'{"ratio": 1e400}', ("malformed", "ratio")),
    (b'{"ratios": [1, -1e400]}', ("malformed", "ratios[]")),
    # Whoever knows how the end of a text is told cannot say that it is there.
    (b'{"text": "a"},{"__tidemark_end":true}] x', _MALFORMED),
    (b'{"price": " 1"}', _MALFORMED),
    (b'{"price": "NaN"}', _MALFORMED),
    (b'{"price": true}', _MALFORMED),
    (b'{"price": 1e99}', _MALFORMED),
    (b'{"price": 1.23456}', ("malformed", "price")),
    (b'{"price": 12345678901234.12345}', ("malformed", "price")),
    (b'{"price": 123456789012345.0}', _MALFORMED),
    (b'{"day": "2026-02-30"}', ("malformed", "day")),
    (b'{"day": 20260228}', ("malformed", "day")),
    (b'{"day": "2026-02-28T00:00:00"}', ("malformed", "day")),
    (b'{"at": 1700000000}', ("malformed", "at")),
    (b'{"at": "12:30"}', ("malformed", "at")),
    (b'{"at": "2026-01-01T12:30Z"}', ("malformed", "at")),
    (b'{"wide": 1.234}', ("malformed", "wide")),
    (b'{"at": "2026-01-01T25:00:00Z"}', ("malformed", "at")),
    (b'{"at": "2026-01-01T00:00:00.1234567Z"}', ("malformed", "at")),
    (b'{"at": "2026-01-01T00:00:00Z\\n"}', ("malformed", "at")),
    (b'{"day": "2026-01-01\\n"}', ("malformed", "day")),
    (b'{"legs": [{"qty": 1}, {"on": "soon"}]}', ("malformed", "legs[]")),
    (b'{"legs": [{"qty": 1.5}]}', _MALFORMED),
    (b'{"legs": {"qty": 1}}', _MALFORMED),
    (b'{"days": ["2026-01-02", "x"]}', ("malformed", "days[]")),
    (b'{"inner": {"price": 1.234}}', ("malformed", "inner.price")),
    (b'{"inner": {"price": 100}}', _MALFORMED),
    (b'{"inner": 5}', _MALFORMED),
    (b'{"text": "\xff"}', ("not_utf8", None)),
]


def read(spark: SparkSession, spec: PayloadSpec, payloads: Sequence[bytes | None]) -> list[Any]:
    """Value, reason and detail of each payload."""
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    rows = spark.createDataFrame(
        [(number, payload) for number, payload in enumerate(payloads)],
        f"number int, {raw(Part.VALUE)} binary",
    )
    told = with_decoded(rows, Part.VALUE, spec).select(
        "number",
        "value",
        F.col(reason(Part.VALUE)).alias("reason"),
        F.col(detail(Part.VALUE)).alias("detail"),
    )
    return [row.asDict(recursive=True) for row in told.orderBy("number").collect()]


def json_spec() -> PayloadSpec:
    """JSON with a field of every type."""
    schema = parse_type(_SCHEMA)
    assert isinstance(schema, Struct)
    return PayloadSpec(format=Format.JSON, schema=schema)


def test_json_that_fits_is_decoded_exactly(spark: SparkSession) -> None:
    """Digits, moments and nulls as they were written."""
    told = read(spark, json_spec(), [payload for payload, _ in GOOD])
    wrong = {
        payload: row
        for (payload, expected), row in zip(GOOD, told, strict=True)
        if (row["value"], row["reason"], row["detail"]) != ({**_NONE, **expected}, None, None)
    }
    assert wrong == {}


def test_json_that_does_not_fit_is_told(spark: SparkSession) -> None:
    """Nothing is rounded, cut off, guessed or made null."""
    told = read(spark, json_spec(), [payload for payload, _ in BAD])
    wrong = {
        payload: row
        for (payload, expected), row in zip(BAD, told, strict=True)
        if (row["reason"], row["detail"]) != expected
    }
    assert wrong == {}


def test_poison_fails_no_run(spark: SparkSession) -> None:
    """Deeper, or longer, than Spark's parser takes: records as others, which are told."""
    deep = b"[" * 1_100 + b"]" * 1_100
    poison = [b'{"text": %s}' % deep, b'{"other": %s}' % deep, b'{"legs": %s}' % deep, deep]
    poison += [b'{"text": "%s"}' % (b"x" * 25_000_000), b'{"text": "after"}']
    told = read(spark, json_spec(), poison)
    assert [(row["reason"], row["detail"]) for row in told] == [*[_MALFORMED] * 5, (None, None)]


def test_no_payload_is_no_fault(spark: SparkSession) -> None:
    """A tombstone has no fields, and a record without a key no key."""
    for spec in (json_spec(), PayloadSpec(format=Format.STRING), PayloadSpec()):
        assert read(spark, spec, [None]) == [
            {"number": 0, "value": None, "reason": None, "detail": None}
        ]


def test_text_and_bytes(spark: SparkSession) -> None:
    """Bytes are anything; text is UTF-8."""
    payloads = [b"", "Grüße".encode(), b"\xff", b"\xed\xa0\x80"]
    text = read(spark, PayloadSpec(format=Format.STRING), payloads)
    assert [row["reason"] for row in text] == [None, None, "not_utf8", "not_utf8"]
    assert [row["value"] for row in text[:2]] == ["", "Grüße"]
    kept = read(spark, PayloadSpec(), payloads)
    assert [(bytes(row["value"]), row["reason"]) for row in kept] == [(p, None) for p in payloads]


def test_moments_are_utc(spark: SparkSession) -> None:
    """Whatever the machine's zone is."""
    (row,) = read(spark, json_spec(), [b'{"at": "2026-07-01T12:00:00Z"}'])
    assert row["value"]["at"].astimezone(UTC) == datetime(2026, 7, 1, 12, tzinfo=UTC)

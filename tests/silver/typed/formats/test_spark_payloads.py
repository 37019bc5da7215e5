"""Tests of valid and invalid payloads; one Spark query decodes all cases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.silver.typed.formats import spark_json
from tidemark.silver.typed.formats.spark_payloads import SETTINGS, detail, raw, reason, with_decoded
from tidemark.spec.decode import REST, Format, Part, PayloadSpec
from tidemark.spec.fields import ListOf, Struct
from tidemark.spec.type_parsing import parse_type

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
    "texts": ["string"],
    "notes": [{"note": "string", "price": "decimal(4,2)"}],
    "inner": {"price": "decimal(4,2)"},
}
_NONE = dict.fromkeys(_SCHEMA)
_NOT_JSON = ("not_json", None)

GOOD: Sequence[tuple[bytes, dict[str, Any]]] = [
    (b"{}", {}),
    (b' {"text": "a"} \n', {"text": "a"}),
    (b'{"other": 1, "text": null}', {}),
    ('{"text": "Grüße"}'.encode(), {"text": "Grüße"}),
    # Other values become JSON text.
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
    (b'{"price": ".5"}', {"price": Number("0.5000")}),
    (b'{"price": "-1E2"}', {"price": Number("-100.0000")}),
    (b'{"price": 1e2}', {"price": Number("100.0000")}),
    # More digits than a double has.
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
    # A character as two escapes, and an escaped backslash before `ud800`.
    (b'{"text": "\\ud83d\\uDE00"}', {"text": "\U0001f600"}),
    (b'{"text": "\\\\ud800"}', {"text": "\\ud800"}),
    (b'{"text": "\\u00fc\\ufffd?"}', {"text": "\xfc\ufffd?"}),
    # Fields without a column are not checked.
    (b'{"other": "\\ud800", "text": "?", "a\\udc00": 1}', {"text": "?"}),
    (b'{"other": 1e999, "text": "Infinity"}', {"text": "Infinity"}),
    # Texts that equal the marker of an infinite number.
    (b'{"other": 1e999, "text": "\\"Infinity\\""}', {"text": '"Infinity"'}),
    (b'{"text": {"Infinity": 1}}', {"text": '{"Infinity":1}'}),
    (b'{"texts": ["\\"-Infinity\\"", null]}', {"texts": ['"-Infinity"', None]}),
    (
        '{"text": "it\u2019s \u0661", "price": "1.25"}'.encode(),
        {"text": "it\u2019s \u0661", "price": Number("1.2500")},
    ),
    (
        '{"notes": [{"note": "l\u2019été", "price": "1.5"}]}'.encode(),
        {"notes": [{"note": "l\u2019été", "price": Number("1.50")}]},
    ),
    (b'{"day": "0001-01-01"}', {"day": date(1, 1, 1)}),
    (b'{"day": "9999-12-31"}', {"day": date(9999, 12, 31)}),
    (b'{"at": "0001-01-03T00:00:00Z"}', {"at": datetime(1, 1, 3)}),
    (
        b'{"at": "9999-12-31T23:59:59.999999Z"}',
        {"at": datetime(9999, 12, 31, 23, 59, 59, 999999)},
    ),
    (b'{"other": [%s]}' % (b"1" * 1_000), {}),
    (b'{"text": "\xc3\xbc"}  ', {"text": "\xfc"}),
]

BAD: Sequence[tuple[bytes, tuple[str, str | None]]] = [
    (b"", _NOT_JSON),
    (b" ", _NOT_JSON),
    (b"null", _NOT_JSON),
    (b"12", _NOT_JSON),
    (b'"text"', _NOT_JSON),
    (b'[{"text": "a"}]', _NOT_JSON),
    (b'{"text": "a"', _NOT_JSON),
    (b'{"text": "a"} x', _NOT_JSON),
    (b'{"text": "a"}{"text": "b"}', _NOT_JSON),
    (b'{"text": "a"}, {"text": "b"}', _NOT_JSON),
    (b'{"text": "a"}], [{}', _NOT_JSON),
    (b'{"text": "a"} }', _NOT_JSON),
    (b'{"inner": {}} {}', _NOT_JSON),
    (b'{"inner": {}}] x', _NOT_JSON),
    (b'{"inner": {}', _NOT_JSON),
    (b'{"text": "}', _NOT_JSON),
    (b'{"text": "a"}]', _NOT_JSON),
    (b',{"text": "a"}', _NOT_JSON),
    (b"{'text': 'a'}", _NOT_JSON),
    (b'{"flag": "true"}', ("malformed", "flag")),
    (b'{"flag": 1}', ("malformed", "flag")),
    (b'{"small": 2147483648}', ("malformed", "small")),
    (b'{"big": 9223372036854775808}', ("malformed", "big")),
    (b'{"big": 1.5}', ("malformed", "big")),
    (b'{"big": "1"}', ("malformed", "big")),
    (b'{"ratio": "1.5"}', ("malformed", "ratio")),
    (b'{"ratio": NaN}', _NOT_JSON),
    (b'{"ratio": "Infinity"}', ("malformed", "ratio")),
    (b'{"price": "12,50"}', ("malformed", "price")),
    (b'{"price": "12\'50"}', ("malformed", "price")),
    (b'{"ratio": 1e400}', ("malformed", "ratio")),
    (b'{"ratios": [1, -1e400]}', ("malformed", "ratios[]")),
    # A payload cannot contain a valid end marker.
    (b'{"text": "a"},{"__tidemark_end":true}] x', _NOT_JSON),
    (b'{"price": " 1"}', ("malformed", "price")),
    (b'{"price": "NaN"}', ("malformed", "price")),
    (b'{"price": true}', ("malformed", "price")),
    (b'{"price": 1e99}', ("malformed", "price")),
    (b'{"price": 1.23456}', ("malformed", "price")),
    (b'{"price": 12345678901234.12345}', ("malformed", "price")),
    (b'{"price": 123456789012345.0}', ("malformed", "price")),
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
    (b'{"legs": [{"qty": 1.5}]}', ("malformed", "legs[]")),
    (b'{"legs": {"qty": 1}}', ("malformed", "legs[]")),
    (b'{"days": ["2026-01-02", "x"]}', ("malformed", "days[]")),
    (b'{"inner": {"price": 1.234}}', ("malformed", "inner.price")),
    (b'{"inner": {"price": 100}}', ("malformed", "inner.price")),
    (b'{"inner": 5}', ("malformed", "inner")),
    (b'{"text": "\xff"}', ("not_utf8", None)),
    (b"hello", _NOT_JSON),
    (b'{"text": tru}', _NOT_JSON),
    (b'{"other": [1, }', _NOT_JSON),
    # An unpaired surrogate: in a text, after a complete pair, in a list, in a key.
    (b'{"text": "a\\ud800"}', ("malformed", "text")),
    (b'{"text": "\\uD83D\\ude00\\uDC00?"}', ("malformed", "text")),
    (b'{"text": "\\ud800\\ud83d\\ude00"}', ("malformed", "text")),
    (b'{"text": "\\\\\\udc00"}', ("malformed", "text")),
    (b'{"text": "\\ud800\\n\\udc00"}', ("malformed", "text")),
    (b'{"text": {"a\\ud800": 1}}', ("malformed", "text")),
    (b'{"text": [{"a": ["\\ud800"]}]}', ("malformed", "text")),
    (b'{"text": "a", "texts": ["a", "\\ude00\\ud83d"]}', ("malformed", "texts[]")),
    (b'{"notes": [{"note": "a"}, {"note": "\\ud800"}]}', ("malformed", "notes[]")),
    # A number that exceeds a double, which Spark uses on the way.
    (b'{"text": 1e999}', ("malformed", "text")),
    (b'{"text": [1, {"a": -1e400}]}', ("malformed", "text")),
    (b'{"text": "\\"Infinity\\"", "texts": ["a", 1e999]}', ("malformed", "texts[]")),
    (b'{"notes": [{"note": 1E999}]}', ("malformed", "notes[]")),
    # Dates and timestamps outside Python's range.
    (b'{"day": "0000-12-31"}', ("malformed", "day")),
    (b'{"at": "0000-12-31T23:59:59Z"}', ("malformed", "at")),
    (b'{"at": "0001-01-01T00:00:00+00:01"}', ("malformed", "at")),
    (b'{"at": "9999-12-31T23:59:59.999999-00:01"}', ("malformed", "at")),
    # Signs between digits, digits of other scripts, and none at all.
    ('{"price": "1\u201925"}'.encode(), ("malformed", "price")),
    ('{"price": "1\u2019250.50"}'.encode(), ("malformed", "price")),
    ('{"price": "\u0661٢"}'.encode(), ("malformed", "price")),
    ('{"price": "\uff11\uff12"}'.encode(), ("malformed", "price")),
    ('{"price": "1\xa0250"}'.encode(), ("malformed", "price")),
    ('{"price": "\u221e"}'.encode(), ("malformed", "price")),
    ('{"text": "\u2019", "inner": {"price": "1\u20192"}}'.encode(), ("malformed", "inner.price")),
    ('{"notes": [{"price": "1\u20192"}]}'.encode(), ("malformed", "notes[]")),
    (b'{"price": "1,250"}', ("malformed", "price")),
    (b'{"price": ""}', ("malformed", "price")),
    (b'{"price": "+5"}', ("malformed", "price")),
    # A number that is too long for the parser, in any field.
    (b'{"big": %s}' % (b"1" * 1_001), _NOT_JSON),
    (b'{"text": 1.%s}' % (b"0" * 1_001), _NOT_JSON),
    (b'{"other": %s}' % (b"1" * 1_001), _NOT_JSON),
]


def read(
    spark: SparkSession,
    spec: PayloadSpec,
    payloads: Sequence[bytes | None],
    *,
    names_faults: bool = False,
) -> list[Any]:
    """Return value, reason, detail and its path of each payload; a failed row has no value."""
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
    return [{**row, "path": row["detail"] and row["detail"].split(": ")[0]} for row in found]


def json_spec() -> PayloadSpec:
    """Return a spec of JSON with a field of every type."""
    schema = parse_type(_SCHEMA)
    assert isinstance(schema, Struct)
    return PayloadSpec(format=Format.JSON, schema=schema)


def test_valid_json_is_decoded_exactly(spark: SparkSession) -> None:
    """Covers digits, times and nulls."""
    decoded = read(spark, json_spec(), [payload for payload, _ in GOOD])
    wrong = {
        payload: row
        for (payload, expected), row in zip(GOOD, decoded, strict=True)
        if (row["value"], row["reason"], row["path"]) != ({**_NONE, **expected}, None, None)
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
        *[_NOT_JSON] * 4,
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

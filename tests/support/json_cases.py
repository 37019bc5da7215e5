"""JSON payloads that a decode accepts or refuses, with the results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal as Number
from typing import Any

from tidemark.spec.decode import Format, PayloadSpec
from tidemark.spec.fields import Struct
from tidemark.spec.type_parsing import parse_type

SCHEMA = {
    "text": "string",
    "flag": "boolean",
    "small": "integer",
    "big": "long",
    "ratio": "double",
    "ratios": ["double"],
    "price": "decimal(18,4)",
    "wide": "decimal(28,2)",
    "most": "decimal(28,28)",
    "day": "date",
    "at": "timestamp",
    "legs": [{"qty": "long", "on": "date"}],
    "days": ["date"],
    "texts": ["string"],
    "notes": [{"note": "string", "price": "decimal(4,2)"}],
    "inner": {"price": "decimal(4,2)"},
}
NONE = dict.fromkeys(SCHEMA)
NOT_JSON = ("not_json", "*")
"""Texts that are no JSON object have several details."""
SURROGATE = ("not_json", "a text has an unpaired surrogate")

GOOD: Sequence[tuple[bytes, dict[str, Any]]] = [
    (b"{}", {}),
    (b' {"text": "a"} \n', {"text": "a"}),
    (b'{"other": 1, "text": null}', {}),
    ('{"text": "Grüße"}'.encode(), {"text": "Grüße"}),
    # Other values become JSON text.
    (b'{"text": 12.50}', {"text": "12.50"}),
    (b'{"text": {"a": [1, 2.0 ]}}', {"text": '{"a":[1,2.0]}'}),
    (b'{"text": 1e999}', {"text": "1e999"}),
    (b'{"texts": [true, 1e2, "1e2"]}', {"texts": ["true", "1e2", "1e2"]}),
    (
        b'{"flag": true, "small": -5, "big": 9223372036854775807}',
        {
            "flag": True,
            "small": -5,
            "big": 2**63 - 1,
        },
    ),
    (b'{"ratio": 1}', {"ratio": 1.0}),
    (b'{"ratio": -0, "big": 1.0}', {"ratio": 0.0, "big": 1}),
    (
        b'{"most": 0.1234567890123456789012345678}',
        {"most": Number("0.1234567890123456789012345678")},
    ),
    (b'{"price": 0e99}', {"price": Number(0)}),
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
    # The types of fields without a column are not checked.
    (b'{"other": 1e999, "text": "Infinity"}', {"text": "Infinity"}),
    (b'{"other": %s, "text": 1.%s}' % (b"1" * 5_000, b"0" * 5), {"text": "1.00000"}),
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
    (b"", NOT_JSON),
    (b" ", NOT_JSON),
    (b"null", NOT_JSON),
    (b"12", NOT_JSON),
    (b'"text"', NOT_JSON),
    (b'[{"text": "a"}]', NOT_JSON),
    (b'{"text": "a"', NOT_JSON),
    (b'{"text": "a"} x', NOT_JSON),
    (b'{"text": "a"}{"text": "b"}', NOT_JSON),
    (b'{"text": "a"}, {"text": "b"}', NOT_JSON),
    (b'{"text": "a"}], [{}', NOT_JSON),
    (b'{"text": "a"} }', NOT_JSON),
    (b'{"inner": {}} {}', NOT_JSON),
    (b'{"inner": {}}] x', NOT_JSON),
    (b'{"inner": {}', NOT_JSON),
    (b'{"text": "}', NOT_JSON),
    (b'{"text": "a"}]', NOT_JSON),
    (b',{"text": "a"}', NOT_JSON),
    (b"{'text': 'a'}", NOT_JSON),
    (b'{"flag": "true"}', ("malformed", "flag")),
    (b'{"flag": 1}', ("malformed", "flag")),
    (b'{"small": 2147483648}', ("malformed", "small")),
    (b'{"big": 9223372036854775808}', ("malformed", "big")),
    (b'{"big": 1.5}', ("malformed", "big")),
    (b'{"big": "1"}', ("malformed", "big")),
    (b'{"ratio": "1.5"}', ("malformed", "ratio")),
    (b'{"ratio": NaN}', NOT_JSON),
    (b'{"ratio": "Infinity"}', ("malformed", "ratio")),
    (b'{"price": "12,50"}', ("malformed", "price")),
    (b'{"price": "12\'50"}', ("malformed", "price")),
    (b'{"ratio": 1e400}', ("malformed", "ratio")),
    (b'{"ratios": [1, -1e400]}', ("malformed", "ratios[]")),
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
    (b'{"legs": [{"qty": 1}, {"on": "soon"}]}', ("malformed", "legs[].on")),
    (b'{"legs": [{"qty": 1.5}]}', ("malformed", "legs[].qty")),
    (b'{"legs": {"qty": 1}}', ("malformed", "legs")),
    (b'{"days": ["2026-01-02", "x"]}', ("malformed", "days[]")),
    (b'{"inner": {"price": 1.234}}', ("malformed", "inner.price")),
    (b'{"inner": {"price": 100}}', ("malformed", "inner.price")),
    (b'{"inner": 5}', ("malformed", "inner")),
    (b'{"text": "\xff"}', ("not_utf8", None)),
    (b"hello", NOT_JSON),
    (b'{"text": tru}', NOT_JSON),
    (b'{"other": [1, }', NOT_JSON),
    # An unpaired surrogate: in a text, after a complete pair, in a list, in a key.
    (b'{"text": "a\\ud800"}', SURROGATE),
    (b'{"text": "\\uD83D\\ude00\\uDC00?"}', SURROGATE),
    (b'{"text": "\\ud800\\ud83d\\ude00"}', SURROGATE),
    (b'{"text": "\\\\\\udc00"}', SURROGATE),
    (b'{"text": "\\ud800\\n\\udc00"}', SURROGATE),
    (b'{"text": {"a\\ud800": 1}}', SURROGATE),
    (b'{"texts": ["a", "\\ude00\\ud83d"]}', SURROGATE),
    (b'{"other": "\\ud800", "text": "?"}', SURROGATE),
    (b'{"text": "\\ud800", "text": "?"}', SURROGATE),
    (b'{"text": "\\ud83d\\\\\\ude00"}', SURROGATE),
    # Dates and timestamps outside Python's range.
    (b'{"day": "0000-12-31"}', ("malformed", "day")),
    (b'{"at": "0000-12-31T23:59:59Z"}', ("malformed", "at")),
    (b'{"at": "0001-01-01T00:00:00+00:01"}', ("malformed", "at")),
    (b'{"at": "0000-12-31T23:59:59-00:01"}', ("malformed", "at")),
    # Arrow returns wrong numbers for these texts, or crashes.
    *((b'{"price": 1e-%d}' % number, ("malformed", "price")) for number in (43, 10**8, 2**31)),
    (b'{"wide": 9999999999999999999999999999e-3287}', ("malformed", "wide")),
    (b'{"wide": 3402823669209384634633746075e11}', ("malformed", "wide")),
    (b'{"most": 4359650141604399297576010587}', ("malformed", "most")),
    (b'{"at": "9999-12-31T23:59:59.999999-00:01"}', ("malformed", "at")),
    # Signs between digits, digits of other scripts, and none at all.
    ('{"price": "1\u201925"}'.encode(), ("malformed", "price")),
    ('{"price": "1\u2019250.50"}'.encode(), ("malformed", "price")),
    ('{"price": "\u0661٢"}'.encode(), ("malformed", "price")),
    ('{"price": "\uff11\uff12"}'.encode(), ("malformed", "price")),
    ('{"price": "1\xa0250"}'.encode(), ("malformed", "price")),
    ('{"price": "\u221e"}'.encode(), ("malformed", "price")),
    ('{"text": "\u2019", "inner": {"price": "1\u20192"}}'.encode(), ("malformed", "inner.price")),
    ('{"notes": [{"price": "1\u20192"}]}'.encode(), ("malformed", "notes[].price")),
    (b'{"price": "1,250"}', ("malformed", "price")),
    (b'{"price": ""}', ("malformed", "price")),
    (b'{"price": "+5"}', ("malformed", "price")),
    # Numbers of thousands of digits.
    (b'{"big": %s}' % (b"1" * 5_000), ("malformed", "big")),
    (b'{"ratio": %s}' % (b"1" * 5_000), ("malformed", "ratio")),
    (b'{"price": 1.%s1}' % (b"0" * 5_000), ("malformed", "price")),
]


def json_spec() -> PayloadSpec:
    """Return a spec of JSON with a field of every type."""
    schema = parse_type(SCHEMA)
    assert isinstance(schema, Struct)
    return PayloadSpec(format=Format.JSON, schema=schema)

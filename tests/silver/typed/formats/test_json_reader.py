"""Valid and invalid JSON objects, and random ones that Python's own parser judges."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime
from decimal import Decimal as Number
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.support.json_cases import BAD, GOOD, NONE, json_spec
from tests.support.json_reading import read, spec_of
from tidemark.silver.typed.formats import json_reader
from tidemark.silver.typed.json_values import json_object
from tidemark.silver.typed.payload_values import MalformedPayload
from tidemark.spec.decode import REST

_SUITE = Path(__file__).parent / "json_test_suite" / "cases.json"


def in_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def test_valid_json_is_decoded_exactly() -> None:
    """Covers digits, times and nulls."""
    decoded = read(json_spec(), [payload for payload, _ in GOOD])
    wrong = {
        payload: row
        for (payload, expected), row in zip(GOOD, decoded, strict=True)
        if (row["value"], row["detail"])
        != ({**NONE, **{name: in_utc(each) for name, each in expected.items()}}, None)
    }
    assert wrong == {}


def test_invalid_json_has_a_reason_and_a_detail() -> None:
    """No value is rounded, truncated, guessed or replaced by null."""
    decoded = read(json_spec(), [payload for payload, _ in BAD])
    wrong = {
        payload: row
        for (payload, (reason, place)), row in zip(BAD, decoded, strict=True)
        if row["reason"] != reason or (place != "*" and place not in (row["path"], row["detail"]))
    }
    assert wrong == {}
    assert all(row["detail"] for row in decoded if row["reason"] != "not_utf8")


@pytest.mark.parametrize("is_alone", [False, True])
def test_records_of_a_batch_do_not_affect_each_other(*, is_alone: bool) -> None:
    """Suspect records of a batch are read again."""
    payloads: list[bytes | None] = [payload for payload, _ in (*GOOD, *BAD)]
    payloads.insert(7, None)
    Random(3).shuffle(payloads)
    together = read(json_spec(), payloads)
    other = b'{"text": "x", "price": 1.5, "at": "2026-01-01T00:00:00Z"}'
    for payload, row in zip(payloads, together, strict=True):
        assert read(json_spec(), [payload, *([] if is_alone else [other])])[0] == row


def test_details_name_the_expected_type_and_the_type_found_without_values() -> None:
    schema = {
        "n": "long",
        "price": "decimal(18,4)",
        "text": "string",
        "at": "timestamp",
        "in": {"flag": "boolean", "it's": "long"},
        "tags": ["long"],
        "legs": [{"price": "double"}],
    }
    cases = {
        '{"n": "secret"}': "n: expected long, found text",
        '{"n": 1.5}': "n: expected long, found another number",
        '{"n": false}': "n: expected long, found boolean",
        '{"price": "12,50"}': "price: expected decimal(18,4), found text",
        '{"price": 1.123456}': "price: expected decimal(18,4), found another number",
        '{"price": {"secret": 1}}': "price: expected decimal(18,4), found object",
        '{"at": "2026"}': "at: expected timestamp, found another text",
        '{"at": 5}': "at: expected timestamp, found number",
        '{"in": 5}': "in: expected object, found number",
        '{"in": {"flag": 1}}': "in.flag: expected boolean, found number",
        '{"in": {"it\'s": []}}': "in.it's: expected long, found list",
        '{"tags": 5}': "tags: expected list of long, found number",
        '{"tags": ["secret"]}': "tags[]: expected long, found text",
        '{"legs": [{"price": true}]}': "legs[].price: expected double, found boolean",
        '{"n": 1, "n": "secret"}': "n: expected long, found text",
        '{"n": 1} secret': "trailing characters",
        "[1]": "Expected `object`, got `array`",
        '{"n": 1': "Input data was truncated",
        "": "Input data was truncated",
        '{"secret": "\\ud800"}': "a text has an unpaired surrogate",
        '{"n": NaN}': "invalid character",
        '\ufeff{"n": 1}': "invalid character",
    }
    rows = read(spec_of(schema), [each.encode() for each in cases])
    assert dict(zip(cases, (row["detail"] for row in rows), strict=True)) == cases


def test_deep_json_is_quarantined() -> None:
    """The payloads are deeper than the parser accepts."""
    deep = b"[" * 100_000 + b"]" * 100_000
    poison = [b'{"text": %s}' % deep, b'{"other": %s}' % deep, b'{"legs": %s}' % deep, deep]
    decoded = read(json_spec(), [*poison, b'{"text": "after"}'])
    assert [row["reason"] for row in decoded] == [*["not_json"] * 4, None]
    assert {row["detail"] for row in decoded[:3]} == {"the text is nested too deep"}


@pytest.mark.parametrize("keeps_rest", [True, False])
def test_no_depth_of_json_fails_a_batch(*, keeps_rest: bool) -> None:
    """The reader's own calls use the stack as well."""
    payloads = [b'{"x": %s1%s}' % (b"[" * depth, b"]" * depth) for depth in range(900, 1_010)]
    schema = spec_of({"n": "long"}).schema
    assert schema is not None
    for payload in payloads:
        column = pa.array([payload], pa.binary())
        (row,) = json_reader.read(column, schema, keeps_rest=keeps_rest).to_pylist()
        assert row["reason"] in (None, "not_json")


def test_a_suspect_record_does_not_affect_tombstones_and_other_reasons() -> None:
    """Arrow cannot convert this valid decimal."""
    payloads = [None, b'{"text": "\xff"}', b'{"price": 0e99}', b'{"price": 1.5}', None]
    rows = read(json_spec(), payloads)
    assert [row["reason"] for row in rows] == [None, "not_utf8", None, None, None]
    assert [row["value"] and row["value"]["price"] for row in rows] == [
        *(None, None, Number(0), Number("1.5"), None)
    ]


def test_the_last_value_of_a_repeated_name_counts_at_every_level() -> None:
    """The reference page documents it. With `keep_rest`, the same holds for unnamed fields."""
    leg = {"a": "long", "b": "long"}
    payloads: dict[bytes, dict[str, Any]] = {
        b'{"n": 1, "n": 2}': {"n": 2},
        b'{"n": 1, "n": null}': {},
        b'{"n": "text", "n": 2}': {"n": 2},
        b'{"leg": {"a": 1, "a": 2}}': {"leg": {"a": 2, "b": None}},
        # The second object replaces the first one; its fields are not merged.
        b'{"leg": {"a": 1}, "leg": {"b": 2}}': {"leg": {"a": None, "b": 2}},
        b'{"legs": [{"a": 1, "a": 3}]}': {"legs": [{"a": 3, "b": None}]},
        b'{"n": 1, "\\u006e": 2}': {"n": 2},
    }
    nothing = dict.fromkeys(("n", "leg", "legs", "text"))
    decoded = read(spec_of({"n": "long", "leg": leg, "legs": [leg], "text": "string"}), [*payloads])
    assert [row["value"] for row in decoded] == [{**nothing, **each} for each in payloads.values()]
    (row,) = read(spec_of({"n": "long"}, keeps_rest=True), [b'{"n": 1, "x": 1, "x": 2}'])
    assert row["value"][REST] == '{"x":2}'


def test_unnamed_fields_are_kept_as_json() -> None:
    """No field is lost, and no digit. Invalid objects stay invalid."""
    spec = spec_of({"n": "long"}, keeps_rest=True)
    kept = {
        b'{"n": 1}': None,
        b"{}": None,
        b'{"N": 1, "a.b": "x", "": null}': '{"N":1,"a.b":"x","":null}',
        b'{"n": 1.0, "t": "1", "d": 12345678901234567890.50}': (
            '{"t":"1","d":12345678901234567890.50}'
        ),
        b'{"x": [{"y": true}, 1e2], "n": 2}': '{"x":[{"y":true},1e2]}',
        b'{"x": {"y": 1, "y": 2}, "z": "s"}': '{"x":{"y":1,"y":2},"z":"s"}',
        b'{"x": 1e999, "y\\u0022": "\\u00fc"}': '{"x":1e999,"y\\"":"\\u00fc"}',
    }
    assert [row["value"][REST] for row in read(spec, list(kept))] == list(kept.values())
    bad = [b'{"x": 1} more', b'{"x": NaN}', b'{"n": "text", "x": 1}', b"[1]"]
    assert [row["value"] for row in read(spec, bad)] == [None] * len(bad)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\u00e9", "$.[]", "a'b", "f0", "__class__"])
def test_a_field_may_have_any_name(name: str) -> None:
    """Names in the reader's own code are no exception."""
    for schema in ({name: "long", "f1": "long"}, {"in": [{name: "long", "f1": "long"}]}):
        inner = {name: 5, "f1": 6}
        value: Any = inner if name in schema else {"in": [inner]}
        (row,) = read(spec_of(schema), [json.dumps(value).encode()])
        assert row["value"] == value


def test_a_missing_payload_is_null_without_a_reason() -> None:
    """It is a tombstone, or a record without a key."""
    for payloads in ([None], [None, b"{}"], [None, b"x"]):
        (row, *_) = read(json_spec(), payloads)
        assert (row["value"], row["reason"], row["detail"]) == (None, None, None)
    assert read(json_spec(), []) == []


def test_a_part_of_a_column_is_read() -> None:
    payloads = pa.array([b"x", b'{"n": 1}', None, b"\xff"], pa.binary()).slice(1)
    schema = spec_of({"n": "long"}).schema
    assert schema is not None
    found = json_reader.read(payloads, schema).to_pylist()
    assert [row["value"] for row in found] == [{"n": 1}, None, None]
    assert [row["reason"] for row in found] == [None, None, "not_utf8"]


@pytest.mark.parametrize("is_field", [True, False])
def test_the_cases_of_a_public_suite_are_accepted_or_refused(*, is_field: bool) -> None:
    """JSONTestSuite of Nicolas Seriot: names begin with y (to accept) or n (to refuse)."""
    texts = {name: b64decode(text) for name, text in json.loads(_SUITE.read_text()).items()}
    if is_field:
        texts = {name: b'{"x": %s}' % text for name, text in texts.items()}
    rows = read(spec_of({"x": "string"}), list(texts.values()))
    wrong = {
        texts[name]: row
        for name, row in zip(texts, rows, strict=True)
        # A typed value is an object.
        if (row["reason"] is None) != (name[0] == "y" and texts[name].lstrip().startswith(b"{"))
    }
    assert len(texts) > 270
    assert wrong == {}


# -- random objects ------------------------------------------------------------------------------

_RANDOM = {
    "at": "timestamp",
    "day": "date",
    "price": "decimal(10,3)",
    "wide": "decimal(28,2)",
    "most": "decimal(28,28)",
    "whole": "decimal(28,0)",
    "small": "integer",
    "big": "long",
    "ratio": "double",
    "text": "string",
    "flag": "boolean",
    "inner": {"at": ["timestamp"], "legs": [{"price": "decimal(5,0)"}]},
}


def _moment(chance: Random) -> str:
    pick = chance.choice
    day = f"{pick([0, 0, 1, 2, 1969, 2026, 9999, 10000]):04d}-{pick([0, 1, 2, 12, 13]):02d}"
    day += f"-{pick([0, 1, 28, 29, 30, 31, 32]):02d}"
    time = f"{pick([0, 1, 23, 24]):02d}:{pick([0, 59, 60]):02d}:{pick([0, 59, 60]):02d}"
    time += pick(["", "", ".1", ".123456", ".1234567", "."])
    offsets = ["", "", "Z", "Z", "z", "+00:00", "-00:01", "+18:00", "+18:01", "+05:60", "+0530"]
    return day + pick(["T", "T", " ", "t"]) + time + pick([*offsets, "+99:00", "ZZ", "Z "])


def _number(chance: Random) -> str:
    pick = chance.choice
    if chance.random() < 0.3:
        digits = "".join(chance.choices("0123456789", k=chance.randint(1, 40)))
        place = chance.randint(0, len(digits))
        return f"{digits[:place]}.{digits[place:]}" if place < len(digits) else digits
    whole = ["0", "1", "00", "12", "123456789", "9" * 26, "9" * 27, "1" + "0" * 30]
    whole += ["2147483648", "9223372036854775807", "9223372036854775808"]
    fraction = ["", "", ".", ".0", ".5", ".000", ".0001", "." + "0" * 40, "." + "0" * 40 + "1"]
    exponent = ["", "", "e0", "E2", "e-2", "e+3", "e30", "e-400", "e400", "e99999999999"]
    exponent += [f"e{chance.randint(-50, 50)}", f"e{chance.randint(-(2**31), 2**31)}"]
    return pick(["", "", "-", "+"]) + pick(whole) + pick(fraction) + pick(exponent)


def _value(chance: Random) -> str:
    others = ["null", "true", "false", "{}", "[]", '{"a":[1, 2.0 ,"x"]}', "[1,null]", '"NaN"']
    others += ['" 1"', '"1_0"', '"\\u0031"', '"1\\u0000"', '""', '"text"', "0", '"\\ud83d\\ude00"']
    kinds = [
        lambda: json.dumps(_moment(chance)),
        lambda: json.dumps(_moment(chance)[:10]),
        lambda: _number(chance),
        lambda: f'"{_number(chance)}"',
        lambda: chance.choice(others),
    ]
    return chance.choice(kinds)()


def _object(chance: Random) -> bytes:
    names = [*_RANDOM, "other"]
    fields = [f'"{name}": {_value(chance)}' for name in names if chance.random() < 0.1]
    if chance.random() < 0.2:
        moments = f"[{_value(chance)}, {_value(chance)}]"
        fields.append(f'"inner": {{"at": {moments}, "legs": [{{"price": {_value(chance)}}}]}}')
    return f"{{{', '.join(fields)}}}".encode()


def test_random_objects_are_accepted_or_refused_as_by_another_parser() -> None:
    """`read` compares the values of accepted ones."""
    seed = 5
    print(f"seed {seed}")
    chance, spec = Random(seed), spec_of(_RANDOM)
    payloads, rows = [_object(chance) for _ in range(4_000)], list[dict[str, Any]]()
    while len(rows) < len(payloads):
        batch = chance.choice([1, 2, 5, 200])
        rows += read(spec, payloads[len(rows) : len(rows) + batch])
    wrong, accepted = [], 0
    for payload, row in zip(payloads, rows, strict=True):
        try:
            assert spec.schema is not None
            json_object(payload, spec.schema)
            is_valid = True
        except MalformedPayload:
            is_valid = False
        accepted += is_valid
        if is_valid != (row["reason"] is None):
            wrong.append((payload, row))
    assert wrong == []
    assert 1_000 < accepted < 3_000

"""Decoding without Spark returns exactly the values that the typed table should have."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from typing import Any

import pytest

from tests.support.json_cases import BAD, GOOD, NONE, json_spec
from tests.support.registry import avro_bytes, framed
from tests.support.typed_values import differences
from tidemark.silver.typed.differing_values import Unjudged, differing_columns
from tidemark.silver.typed.expected_values import expected_value, has_schema_id_header, schema_id_of
from tidemark.silver.typed.formats.avro import column_of
from tidemark.silver.typed.json_values import NotJudged
from tidemark.silver.typed.payload_values import MalformedPayload
from tidemark.spec.decode import REST, Format, Part, PayloadSpec, RegisteredSchema
from tidemark.spec.fields import Decimal, FieldType, MapOf, Struct, widened_type


def test_valid_json_has_the_expected_values() -> None:
    wrong = {
        payload: found
        for payload, expected in GOOD
        if (found := differences(payload, json_spec(), {**NONE, **expected}))
    }
    assert wrong == {}


def test_another_value_of_any_type_is_found() -> None:
    """Each column of the cases is exchanged for the one of another case."""
    for payload, expected in GOOD:
        for name in expected:
            for _, other in GOOD:
                changed = {**NONE, **expected, name: other.get(name)}
                is_same = changed[name] == expected[name]
                found = differences(payload, json_spec(), changed)
                assert bool(found) != is_same, (payload, changed)
                assert all(each.startswith(f"value.{name}") for each in found)


def test_zero_may_have_any_exponent() -> None:
    spec = PayloadSpec(format=Format.JSON, schema=Struct((("n", "integer"), ("big", "long"))))
    found = expected_value(b'{"n": 0e12, "big": 0.0e-99999999}', spec, None)
    assert found == {"n": 0, "big": 0}


@pytest.mark.parametrize(
    "payload", [b'{"other": 1e99999999999999999999}', b'{"n": 1e-%d}' % 10**20]
)
def test_an_exponent_beyond_the_limits_of_python_is_not_judged(payload: bytes) -> None:
    """A decode accepts such a number in a field that the schema does not name."""
    spec = PayloadSpec(format=Format.JSON, schema=Struct((("n", "double"),)))
    with pytest.raises(NotJudged, match="exponent"):
        expected_value(payload, spec, None)


def test_invalid_json_is_refused() -> None:
    for payload, _ in BAD:
        with pytest.raises(MalformedPayload):
            expected_value(payload, json_spec(), None)


@pytest.mark.parametrize(
    ("payload", "text", "is_same"),
    [
        (b'{"n": 1}', None, True),
        (b'{"n": 1}', "{}", False),
        (b'{"N": 1, "a": "x", "": null}', '{"N":1,"a":"x","":null}', True),
        (b'{"N": 1, "a": "x"}', '{"N":1,"a":"y"}', False),
        (b'{"N": 1, "a": "x"}', '{"N":1}', False),
        (b'{"d": 12345678901234567890.5}', '{"d":12345678901234567890.5}', True),
        (b'{"d": 12345678901234567890.5}', '{"d":12345678901234567891.5}', False),
        (b'{"d": 1e999, "n": 1}', '{"d":1e999}', True),
        (b'{"d": 1.5}', '{"d":1.25}', False),
        (b'{"x": {"y": 1, "y": 2}, "z": "s"}', '{"x":{"y":1,"y":2},"z":"s"}', True),
        (b'{"x": 1, "x": 2}', '{"x":1,"x":2}', True),
        (b'{"x": 1}', "no JSON", False),
    ],
)
def test_unnamed_fields_are_compared_as_json(
    payload: bytes, text: str | None, is_same: bool
) -> None:
    spec = PayloadSpec(format=Format.JSON, schema=Struct((("n", "long"),)), keeps_rest=True)
    n = json.loads(payload).get("n")
    found = differences(payload, spec, {"n": n, REST: text})
    assert found == ([] if is_same else [f"value.{REST}"])


@pytest.mark.parametrize(
    ("expected", "found", "is_same"),
    [
        (math.nan, math.nan, True),
        (math.nan, 0.0, False),
        (0.0, -0.0, False),
        (math.inf, math.inf, True),
        (0.1, 0.1 + 2**-56, False),
        (1, 1.0, True),
    ],
)
def test_floats_are_compared_bit_by_bit(expected: float, found: float, is_same: bool) -> None:
    """All NaN are equal."""
    assert [*differing_columns(expected, found, "double", "x")] == ([] if is_same else ["x"])


def test_a_map_with_a_key_twice_is_not_judged() -> None:
    """A reader of Avro in Python keeps the last value only."""
    kind = MapOf("long")
    assert [*differing_columns({"a": 1}, [("a", 1)], kind, "m")] == []
    assert [*differing_columns({"a": 1}, [("a", 2)], kind, "m")] == ["m{}"]
    assert [*differing_columns({"a": 1}, [("b", 1)], kind, "m")] == ["m{}"]
    (unjudged,) = differing_columns({"a": 2}, [("a", 1), ("a", 2)], kind, "m")
    assert unjudged == Unjudged("m", "a map has a key twice")


_MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
_TRADE = {
    "type": "record",
    "name": "Trade",
    "namespace": "desk",
    "fields": [
        {"name": "price", "type": ["null", _MONEY]},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "either", "type": ["null", "int", "string", "Side"]},
        {"name": "inner", "type": {"type": "array", "items": ["null", "Side", "boolean"]}},
        {"name": "wide", "type": ["int", "long"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "map", "values": "float"}},
        {"name": "nothing", "type": "null"},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
    ],
}  # fmt: skip
_WRITTEN = {
    "price": Number("-123456789012345678901234567890.25"),
    "side": "SELL",
    "either": "x",
    "inner": [True, None, "BUY"],
    "wide": 2**40,
    "day": date(1, 1, 1),
    "at": datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
    "micros": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "id": "no uuid",
    "tags": {"a": 0.5},
    "nothing": None,
    "code": b"abc",
}
_TYPED: dict[str, Any] = {
    **{name: each for name, each in _WRITTEN.items() if name != "nothing"},
    "either": {"member_int": None, "member_string": "x", "member_Side": None},
    "inner": [
        {"member_Side": None, "member_boolean": True},
        None,
        {"member_Side": "BUY", "member_boolean": None},
    ],
}
_AVRO = PayloadSpec(format=Format.AVRO)


def registered(schema: Any) -> tuple[RegisteredSchema, FieldType]:
    """Return an Avro schema with the id 7, and its column."""
    text = json.dumps(schema)
    return RegisteredSchema(id=7, kind="AVRO", text=text), widened_type(column_of(text))


def test_avro_has_the_expected_values() -> None:
    """Also of unions, whose members are fields."""
    schema, column = registered(_TRADE)
    plain = json.loads(json.dumps(_TRADE).replace(', "logicalType": "uuid"', ""))
    payload = framed(7, avro_bytes(plain, _WRITTEN))
    assert differences(payload, _AVRO, _TYPED, schema, column) == []
    # An earlier column lacks fields of the schema; a later one has more.
    assert isinstance(column, Struct)
    fewer = Struct(column.fields[1:])
    assert differences(payload, _AVRO, _TYPED, schema, fewer) == ["value.price"]
    more = Struct((*column.fields, ("new", "long")))
    assert differences(payload, _AVRO, {**_TYPED, "new": None}, schema, more) == []
    assert differences(payload, _AVRO, {**_TYPED, "new": 1}, schema, more) == ["value.new"]
    changed = {**_TYPED, "either": {"member_int": None, "member_string": "y", "member_Side": None}}
    assert differences(payload, _AVRO, changed, schema, column) == ["value.either.member_string"]
    for broken in (payload[:-1], payload + b"x"):
        with pytest.raises(MalformedPayload):
            expected_value(broken, _AVRO, schema)


@pytest.mark.parametrize(
    ("schema", "body", "value"),
    [
        ("bytes", b"any", b"any"),
        (_MONEY, b"\xff", Number("-0.01")),
        (["null", "string"], b"\x00", None),
        (["null", "string"], b"\x02\x02x", "x"),
    ],
)
def test_avro_without_a_record_has_the_expected_value(schema: Any, body: bytes, value: Any) -> None:
    stored, column = registered(schema)
    assert differences(framed(7, body), _AVRO, value, stored, column) == []


def test_a_number_with_more_digits_than_its_type_is_refused() -> None:
    stored, column = registered({**_MONEY, "precision": 2})
    assert column == Decimal(2, 2)
    with pytest.raises(MalformedPayload):
        expected_value(framed(7, b"\x7f"), _AVRO, stored)


def test_a_schema_without_a_column_is_not_judged() -> None:
    """A decode stops at such a schema."""
    stored = RegisteredSchema(id=7, kind="JSON", text='{"type": "string"}')
    with pytest.raises(NotJudged, match="schema 7 has no column"):
        expected_value(framed(7, b"{}"), PayloadSpec(format=Format.JSON_SCHEMA), stored)


def test_payloads_without_a_frame_have_no_schema_id() -> None:
    """An id in a header is not supported yet."""
    assert (schema_id_of(None), schema_id_of(framed(7, b""))) == (None, 7)
    for payload in (b"", b"\0\0\0\1", b"\1\0\0\0\1"):
        with pytest.raises(MalformedPayload):
            schema_id_of(payload)
    header = [{"key": Part.VALUE.schema_id_header, "value": b"x"}]
    assert has_schema_id_header(header, Part.VALUE)
    assert not has_schema_id_header(header, Part.KEY)
    assert not has_schema_id_header(None, Part.KEY)

"""Tests of the decoding of payloads with a schema id without Spark."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.support.plans import make_record
from tests.support.registry import avro_bytes, framed
from tidemark.cli.payloads import payload_lines
from tidemark.silver.typed.decoded_payloads import PayloadDecoder
from tidemark.silver.typed.payload_values import NESTED, MalformedPayload, decoded_fields
from tidemark.silver.typed.registry_answers import Registry, RegistryAnswers
from tidemark.silver.typed.registry_protobuf import compiled
from tidemark.spec.decode import RegisteredSchema

_TRADE = {
    "type": "record",
    "name": "Trade",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["buy", "sell"]}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "ratio", "type": "double"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "either", "type": ["int", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
_VALUE = {
    "n": 7,
    "side": "sell",
    "note": None,
    "ratio": math.nan,
    "price": Decimal("1.25"),
    "day": date(2026, 3, 1),
    "at": datetime(2026, 3, 1, 12, tzinfo=UTC),
    "either": "x",
    "raw": b"\xff",
    "tags": ["a"],
}


def schema_of(kind: str, text: str) -> RegisteredSchema:
    """Return a schema with the id 3."""
    return RegisteredSchema(id=3, kind=kind, text=text)


def fields_of(schema: Any, body: bytes) -> Any:
    """Return the fields of a value in Avro."""
    return decoded_fields(framed(3, body), schema_of("AVRO", json.dumps(schema)))


def test_fields_of_avro_are_json_values() -> None:
    assert fields_of(_TRADE, avro_bytes(_TRADE, _VALUE)) == {
        "n": 7,
        "side": "sell",
        "note": None,
        "ratio": math.inf,
        "price": 1.25,
        "day": "2026-03-01",
        "at": "2026-03-01T12:00:00+00:00",
        "either": NESTED,
        "raw": NESTED,
        "tags": NESTED,
    }


@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_a_truncated_value_is_malformed(cut: int) -> None:
    with pytest.raises(MalformedPayload):
        fields_of(_TRADE, avro_bytes(_TRADE, _VALUE)[:cut])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("string", b"\x02\xff"),
        ("string", b"\x02aa"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\x02"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 1}, b"\x02\x7f"),
        (["null", "string"], b"\x08a"),
    ],
)
def test_bytes_that_are_no_value_of_the_schema_are_malformed(kind: Any, body: bytes) -> None:
    with pytest.raises(MalformedPayload):
        fields_of({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}, body)


@pytest.mark.parametrize("text", ['"string"', '"bytes"', '{"type": "record"}', "{}", "oops"])
def test_values_of_a_schema_without_usable_fields_have_no_fields(text: str) -> None:
    assert decoded_fields(framed(3, b"\x02a"), schema_of("AVRO", text)) == {}


@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        (b'{"n": 1, "other": [1]}', True),
        (b"{}", True),
        (b'{"n": "1"}', False),
        (b'{"n": 1} {}', False),
        (b"[1]", False),
    ],
)
def test_a_json_value_matches_its_schema_or_is_malformed(body: bytes, is_valid: bool) -> None:
    text = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
    if is_valid:
        assert decoded_fields(framed(3, body), schema_of("JSON", text)) == json.loads(body)
        return
    with pytest.raises(MalformedPayload):
        decoded_fields(framed(3, body), schema_of("JSON", text))


def test_a_protobuf_message_is_checked_and_has_no_fields() -> None:
    schema = schema_of("PROTOBUF", compiled('syntax = "proto3"; message M { string n = 1; }', {}))
    assert decoded_fields(framed(3, b"\x00\x0a\x01x"), schema) == {}
    for body in (b"\x00\x0a\x02x", b"\x00\x0a\x01\xff", b""):
        with pytest.raises(MalformedPayload):
            decoded_fields(framed(3, body), schema)


@pytest.mark.parametrize(
    ("type_", "logical", "value"),
    [
        ("int", "time-millis", 1),
        ("long", "time-micros", 2**40),
        ("long", "local-timestamp-micros", 2**62),
        ("string", "uuid", "6ba7b8109dad11d180b400c04fd430c8"),
        ("string", "uuid", ""),
        ("string", "unknown", "x"),
    ],
)
def test_a_logical_type_that_runs_ignore_does_not_change_a_value(
    type_: str, logical: str, value: Any
) -> None:
    plain = {"type": "record", "name": "R", "fields": [{"name": "v", "type": type_}]}
    schema = {**plain, "fields": [{"name": "v", "type": {"type": type_, "logicalType": logical}}]}
    assert fields_of(schema, avro_bytes(plain, {"v": value})) == {"v": value}


# -- payloads of a topic ---------------------------------------------------------------------------


def known(schemas: Collection[RegisteredSchema]) -> Registry:
    """Return a registry with these schemas."""

    def answers(ids: Collection[int]) -> RegistryAnswers:
        found = {each.id: each for each in schemas if each.id in ids}
        return RegistryAnswers(connection="schema_registry_default", schemas=found)

    return answers


def test_payloads_with_a_known_schema_are_decoded_as_json() -> None:
    """A payload without a known schema is not decoded."""
    avro = schema_of("AVRO", json.dumps(_TRADE))
    body = avro_bytes(_TRADE, _VALUE)
    records = [
        make_record(framed(5, body), framed(3, body)),
        make_record(framed(3, body[:-1]), b"text"),
    ]
    decoder = PayloadDecoder.of(records, known([avro]))
    whole = decoder.decode(records[0].key)
    assert whole is not None
    assert whole.title == "AVRO of schema 3"
    assert json.loads(json.dumps(whole.as_record()["value"])) == {
        "n": 7,
        "side": "sell",
        "note": None,
        "ratio": "nan",
        "price": "1.25",
        "day": "2026-03-01",
        "at": "2026-03-01T12:00:00+00:00",
        "either": "x",
        "raw": "/w==",
        "tags": ["a"],
    }
    assert decoder.decode(records[0].value) is decoder.decode(records[1].key) is None
    cut = decoder.decode(records[1].value)
    assert cut is not None
    assert cut.is_malformed
    lines = [line for each in records for line in payload_lines(each, decoder=decoder)]
    assert f"  key       AVRO of schema 3, {len(body) + 5} bytes:" in lines
    assert '      "price": "1.25",' in lines
    assert "  value     malformed AVRO of schema 3" in lines


def test_json_and_protobuf_payloads_are_decoded() -> None:
    of_json = RegisteredSchema(
        id=1, kind="JSON", text='{"type": "object", "properties": {"n": {"type": "integer"}}}'
    )
    proto = 'syntax = "proto3"; message M { int32 n = 1; repeated string tags = 2; }'
    of_protobuf = RegisteredSchema(id=2, kind="PROTOBUF", text=compiled(proto, {}))
    payloads = [framed(1, b'{"n": 1, "more": [2]}'), framed(2, b"\x00\x08\x05\x12\x01a")]
    decoder = PayloadDecoder.of(
        [make_record(each, None) for each in payloads], known([of_json, of_protobuf])
    )
    found = [decoder.decode(each) for each in payloads]
    assert [each and each.value for each in found] == [
        {"n": 1, "more": [2]},
        {"n": 5, "tags": ["a"]},
    ]

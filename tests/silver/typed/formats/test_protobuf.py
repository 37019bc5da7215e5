"""Protobuf: the index in front of a message, and schemas to columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tidemark.silver.typed.formats.protobuf import first_message, message_index
from tidemark.silver.typed.formats.protobuf_reader import column_of
from tidemark.silver.typed.registry_protobuf import compiled
from tidemark.spec.fields import plain_type

_IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto";'
    for name in ("any", "api", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)
_OTHERS = """
message Leg { int32 qty = 1; message Deep { bool yes = 1; } }
message Nothing {}
enum Side { NO = 0; BUY = 1; }
"""


def schema(body: str, others: str = _OTHERS) -> str:
    """Return a schema whose first message has these fields."""
    source = f'syntax = "proto3"; package shop; {_IMPORTS} message M {{ {body} }} {others}'
    return compiled(source, {})


@pytest.mark.parametrize(
    ("payload", "index", "start"),
    [
        (b"\x00rest", (0,), 1),
        (b"\x02\x00", (0,), 2),
        (b"\x02\x02", (1,), 2),
        (b"\x04\x02\x00rest", (1, 0), 3),
        # The example 150 of Protobuf's documentation, in zigzag.
        (b"\x02\xac\x02", (150,), 3),
    ],
)
def test_a_payload_begins_with_the_index_of_its_message(
    payload: bytes, index: tuple[int, ...], start: int
) -> None:
    """Numbers are zigzag varints; the first message has a single byte."""
    assert message_index(payload) == (index, start)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x02",
        b"\x04\x00",
        b"\x01",
        b"\x02\x01",
        b"\x80",
        b"\xff\xff\xff\xff\xff\x00",
        b"\x7e",
    ],
)
def test_an_invalid_message_index_raises(payload: bytes) -> None:
    """Covers truncated, negative and endless indexes, and more numbers than bytes."""
    with pytest.raises(ValueError, match="message index"):
        message_index(payload)


_KINDS: list[tuple[str, Any]] = [
    ("double", "double"),
    ("float", "float"),
    ("int32", "integer"),
    ("sint32", "integer"),
    ("sfixed32", "integer"),
    ("uint32", "long"),
    ("fixed32", "long"),
    ("int64", "long"),
    ("sint64", "long"),
    ("sfixed64", "long"),
    ("uint64", "decimal(20,0)"),
    ("fixed64", "decimal(20,0)"),
    ("bool", "boolean"),
    ("string", "string"),
    ("bytes", "binary"),
    ("optional int32", "integer"),
    ("Side", "string"),
    ("google.protobuf.NullValue", "string"),
    ("Leg", {"qty": "integer"}),
    ("Leg.Deep", {"yes": "boolean"}),
    ("repeated Leg", [{"qty": "integer"}]),
    ("repeated bytes", ["binary"]),
    ("map<string, int32>", {"map": "integer"}),
    ("map<int32, Leg>", {"map": {"qty": "integer"}}),
    ("map<bool, Side>", {"map": "string"}),
    ("google.protobuf.Timestamp", "timestamp"),
    ("repeated google.protobuf.Timestamp", ["timestamp"]),
    ("google.protobuf.DoubleValue", "double"),
    ("google.protobuf.FloatValue", "float"),
    ("google.protobuf.Int32Value", "integer"),
    ("google.protobuf.UInt32Value", "long"),
    ("google.protobuf.Int64Value", "long"),
    ("google.protobuf.UInt64Value", "decimal(20,0)"),
    ("google.protobuf.BoolValue", "boolean"),
    ("google.protobuf.StringValue", "string"),
    ("google.protobuf.BytesValue", "binary"),
    # Messages without a type in Delta become their JSON.
    ("google.protobuf.Any", "string"),
    ("google.protobuf.Duration", "string"),
    ("google.protobuf.Empty", "string"),
    ("google.protobuf.FieldMask", "string"),
    ("google.protobuf.ListValue", "string"),
    ("google.protobuf.Struct", "string"),
    ("google.protobuf.Value", "string"),
    ("Nothing", "string"),
]


def test_each_type_of_field_becomes_a_delta_type() -> None:
    """Covers all types of Protobuf."""
    fields = "".join(f"{kind} f{number} = {number};" for number, (kind, _) in enumerate(_KINDS, 1))
    made = plain_type(column_of(schema(fields)))
    assert made == {f"f{number}": kind for number, (_, kind) in enumerate(_KINDS, 1)}


def test_each_member_of_a_oneof_becomes_a_field() -> None:
    """The order is that of the schema."""
    text = schema("int32 a = 7; oneof b { string c = 1; Leg d = 2; }")
    assert plain_type(column_of(text)) == {"a": "integer", "c": "string", "d": {"qty": "integer"}}
    assert first_message(text).full_name == "shop.M"


def test_the_first_message_is_not_one_of_an_imported_file() -> None:
    """Types of other packages have full names; groups are messages."""
    source = """
      syntax = "proto2";
      import "desk/side.proto";
      message First {
        required desk.Side side = 1;
        repeated group Leg = 2 { optional int32 q = 1; }
      }
      message Second { optional string other = 1; }
    """
    side = 'syntax = "proto2"; package desk; message Side { optional bool buy = 1; }'
    text = compiled(source, {"desk/side.proto": side})
    assert plain_type(column_of(text)) == {"side": {"buy": "boolean"}, "leg": [{"q": "integer"}]}
    assert first_message(text).full_name == "First"


def _chain(length: int) -> str:
    """Return a schema of nested messages, deeper than any real schema."""
    fields = [
        {"name": "f", "number": 1, "label": "LABEL_OPTIONAL", "type": "TYPE_MESSAGE"}
        | {"typeName": f".M{n + 1}"}
        for n in range(length)
    ]
    messages = [{"name": f"M{n}", "field": [each]} for n, each in enumerate(fields)]
    return json.dumps({"file": [{"messageType": [*messages, {"name": f"M{length}"}]}]})


_WITHOUT_COLUMN: list[tuple[Callable[[], str], str]] = [
    (lambda: schema("M f = 1;"), r"^f: shop\.M contains itself"),
    (
        lambda: schema("N f = 1;", "message N { repeated M g = 1; }"),
        r"^f\.g\[\]: shop\.M contains itself",
    ),
    (
        lambda: schema("N f = 1;", "message N { map<string, N> g = 1; }"),
        r"^f\.g\{\}: shop\.N contains itself",
    ),
    (
        lambda: compiled(
            'syntax = "proto2"; message M { optional int32 a = 1; optional int32 A = 2; }', {}
        ),
        "M has fields whose names differ only in case: a",
    ),
    (lambda: schema(""), r"shop\.M has no fields"),
    (lambda: compiled('syntax = "proto3"; enum Side { NO = 0; }', {}), "the schema has no message"),
    (lambda: _chain(5000), "too deep for a column"),
    (lambda: 'syntax = "proto3"; message A { B b = 1; }', "Protobuf schema does not compile"),
    (lambda: "[]", "Protobuf schema does not compile"),
    (lambda: '{"file": []}', "Protobuf schema does not compile"),
]


@pytest.mark.parametrize(
    ("make_text", "problem"), _WITHOUT_COLUMN, ids=[problem for _, problem in _WITHOUT_COLUMN]
)
def test_a_schema_without_a_column_raises_the_reason(
    make_text: Callable[[], str], problem: str
) -> None:
    """The error comes before any record is read."""
    text = make_text()
    with pytest.raises(ValueError, match=problem):
        column_of(text)

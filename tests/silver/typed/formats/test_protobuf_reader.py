"""Protobuf messages to Arrow columns, without Spark.

Google's library writes the messages from JSON. The tests contain the expected values.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format

from tests.support.protobuf import message, proto_bytes
from tidemark.silver.typed.formats.protobuf_reader import read
from tidemark.silver.typed.registry_protobuf import compiled

_IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto";'
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)
ALL = f"""
syntax = "proto3";
package shop;
{_IMPORTS}
message M {{
  double double = 1; float float = 2; int32 int32 = 3; sint32 sint32 = 4; sfixed32 sfixed32 = 5;
  uint32 uint32 = 6; fixed32 fixed32 = 7; int64 int64 = 8; sint64 sint64 = 9;
  sfixed64 sfixed64 = 10; uint64 uint64 = 11; fixed64 fixed64 = 12; bool bool = 13;
  string string = 14; bytes bytes = 15; Side side = 16; Leg leg = 17;
  optional int32 may = 18; oneof one {{ string text = 19; Leg other = 20; }}
  repeated int32 numbers = 21; repeated Leg legs = 22; repeated string words = 23;
  map<string, int64> by_word = 24; map<int32, Leg> by_number = 25; map<bool, Side> by_flag = 26;
  google.protobuf.Timestamp at = 27; repeated google.protobuf.Timestamp times = 28;
  google.protobuf.Int64Value int_value = 29; google.protobuf.StringValue text_value = 30;
  google.protobuf.UInt64Value uint_value = 31; google.protobuf.BytesValue bytes_value = 32;
  google.protobuf.Duration took = 33; google.protobuf.Struct struct = 34;
  google.protobuf.Value value = 35; google.protobuf.ListValue list = 36;
  google.protobuf.Any any = 37; google.protobuf.FieldMask mask = 38;
  google.protobuf.Empty empty = 39; Nothing nothing = 40; int32 from = 41;
  repeated google.protobuf.Int32Value int_values = 42; google.protobuf.NullValue null = 43;
}}
message Leg {{ int32 qty = 1; optional string note = 2; repeated Deep deep = 3; }}
message Deep {{ string word = 1; }}
message Nothing {{}}
enum Side {{ NO = 0; BUY = 1; }}
"""
_LEG: dict[str, Any] = {"qty": 0, "note": None, "deep": []}
_NOTHING_SET = {
    **dict.fromkeys(("double", "float"), 0.0),
    **dict.fromkeys(("int32", "sint32", "sfixed32", "uint32", "fixed32"), 0),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "from"), 0),
    **dict.fromkeys(("uint64", "fixed64"), Decimal(0)),
    **dict(bool=False, string="", bytes=b"", side="NO", null="NULL_VALUE"),
    **dict.fromkeys(("leg", "may", "text", "other", "at", "int_value", "text_value")),
    **dict.fromkeys(("uint_value", "bytes_value", "took", "struct", "value", "list", "any")),
    **dict.fromkeys(("mask", "empty", "nothing")),
    **{name: [] for name in ("numbers", "legs", "words", "times", "int_values")},
    **{name: [] for name in ("by_word", "by_number", "by_flag")},
}


@cache
def _descriptors(source: str) -> str:
    """Return the descriptors of a schema; each compiler is a process of its own."""
    return compiled(source, {})


def decode_payloads(payloads: list[bytes | None], source: str = ALL) -> list[tuple[Any, Any, Any]]:
    """Return value, reason and detail of each payload."""
    rows = read(pa.array(payloads, pa.binary()), _descriptors(source)).to_pylist()
    return [(row["value"], row["reason"], row["detail"]) for row in rows]


def test_an_unset_field_is_null_or_its_default() -> None:
    """The schema decides which; a tombstone is null."""
    assert decode_payloads([b"\x00", None]) == [(_NOTHING_SET, None, None), (None, None, None)]


_UNCHANGED: list[dict[str, Any]] = [
    {"double": 0.1, "float": 0.5},
    {"int32": -(2**31), "sint32": -(2**31), "sfixed32": 2**31 - 1},
    {"uint32": 2**32 - 1, "fixed32": 2**32 - 1},
    {"int64": -(2**63), "sint64": -(2**63), "sfixed64": 2**63 - 1},
    {"side": "BUY", "may": 0, "text": ""},
    {"numbers": [1, 0, 3], "words": ["", "b"]},
]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *((each, each) for each in _UNCHANGED),
        ({"double": "Infinity"}, {"double": float("inf")}),
        (
            {"uint64": 2**64 - 1, "fixed64": 1},
            {"uint64": Decimal("18446744073709551615"), "fixed64": Decimal(1)},
        ),
        (
            {"bool": True, "string": "ä€𝄞", "bytes": "/w==", "from": 1},
            {"bool": True, "string": "ä€𝄞", "bytes": b"\xff", "from": 1},
        ),
        ({"side": 7, "leg": {}}, {"side": "7", "leg": _LEG}),
        ({"side": -1}, {"side": "-1"}),
        ({"leg": {"note": "", "qty": 2}}, {"leg": {**_LEG, "note": "", "qty": 2}}),
        ({"other": {}}, {"other": _LEG}),
        (
            {"legs": [{"qty": 1, "deep": [{"word": "w"}, {}]}, {}]},
            {"legs": [{**_LEG, "qty": 1, "deep": [{"word": "w"}, {"word": ""}]}, _LEG]},
        ),
        (
            {"byWord": {"b": 2, "a": 1}, "byFlag": {"true": "BUY"}},
            {"by_word": [("a", 1), ("b", 2)], "by_flag": [("true", "BUY")]},
        ),
        ({"byNumber": {"-5": {"qty": 1}}}, {"by_number": [("-5", {**_LEG, "qty": 1})]}),
        (
            {"at": "0001-01-01T00:00:00Z"},
            {"at": datetime(1, 1, 1, tzinfo=UTC)},
        ),
        (
            {"at": "9999-12-31T23:59:59.999999999Z"},
            {"at": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
        ),
        # Fractions of a microsecond are cut off, before 1970 as well.
        (
            {"times": ["1969-12-31T23:59:59.999999999Z", "1970-01-01T00:00:00Z"]},
            {
                "times": [
                    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
                    datetime(1970, 1, 1, tzinfo=UTC),
                ]
            },
        ),
        (
            {"intValue": "0", "textValue": "", "uintValue": 2**64 - 1, "bytesValue": "/w=="},
            {
                "int_value": 0,
                "text_value": "",
                "uint_value": Decimal(2**64 - 1),
                "bytes_value": b"\xff",
            },
        ),
        ({"intValues": [0, 5]}, {"int_values": [0, 5]}),
        ({"took": "1.5s", "mask": "a,bC.d"}, {"took": "1.500s", "mask": "a,b_c.d"}),
        ({"empty": {}, "nothing": {}}, {"empty": "{}", "nothing": "{}"}),
    ],
)
def test_each_type_of_field_is_read_exactly(values: Any, expected: Any) -> None:
    """Covers values at the bounds, beside an empty message."""
    payloads: list[bytes | None] = [b"\x00", proto_bytes(ALL, "shop.M", values), None]
    assert decode_payloads(payloads) == [
        (_NOTHING_SET, None, None),
        ({**_NOTHING_SET, **expected}, None, None),
        (None, None, None),
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("struct", {"b": [1.5, None, {"c": "ä"}], "a": True}),
        ("value", "text"),
        ("value", 1.5),
        ("value", None),
        ("list", [1.0, "a", {}]),
        ("any", {"@type": "type.googleapis.com/shop.Leg", "qty": 3}),
        ("any", {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "3s"}),
    ],
)
def test_a_message_without_a_delta_type_becomes_json(field: str, value: Any) -> None:
    """The form is Protobuf's own JSON."""
    ((row, reason, _),) = decode_payloads([proto_bytes(ALL, "shop.M", {field: value})])
    assert reason is None
    assert json.loads(row[field]) == value


@pytest.mark.parametrize("type_url", ["x/other.T", ""])
def test_an_any_of_an_unknown_or_missing_type_keeps_its_bytes(type_url: str) -> None:
    """Base64 encodes the bytes."""
    written: Any = message(ALL, "shop.M")
    written.any.type_url, written.any.value = type_url, b"\xff\x00"
    ((row, _, _),) = decode_payloads([b"\x00" + written.SerializeToString()])
    assert json.loads(row["any"]) == {"@type": type_url, "value": "/wA="}


@pytest.mark.parametrize(
    "name", ["ByteSize", "IsInitialized", "DiscardUnknownFields", "HasField", "ListFields"]
)
def test_a_field_may_have_the_name_of_a_method_of_messages(name: str) -> None:
    """Covers the top level, a nested message, and an Any."""
    source = f"""
      syntax = "proto3";
      import "google/protobuf/any.proto";
      message M {{ int64 {name} = 1; Inner in = 2; google.protobuf.Any any = 3; }}
      message Inner {{ optional int64 {name} = 1; optional int64 other = 2; }}
    """
    held = {"@type": "x/Inner", name: "3"}
    written = proto_bytes(source, "M", {name: "1", "in": {name: "2"}, "any": held})
    ((row, reason, _),) = decode_payloads([written], source)
    assert (row[name], row["in"], reason) == (1, {name: 2, "other": None}, None)
    assert "x/Inner" in row["any"]


def test_equal_json_names_of_fields_are_accepted() -> None:
    """The compiler accepts them; Python's library does not by default."""
    source = """
      syntax = "proto3";
      message M { int32 a = 1 [json_name = "zz"]; int32 b = 2 [json_name = "a"]; }
    """
    ((row, _, _),) = decode_payloads([b"\x00\x08\x01\x10\x02"], source)
    assert row == {"a": 1, "b": 2}


def test_the_first_alias_of_an_enum_value_is_read() -> None:
    """Protobuf's JSON has the first alias, too."""
    source = """
      syntax = "proto3";
      message M { E e = 1; }
      enum E { option allow_alias = true; A = 0; NEW = 1; OLD = 1; }
    """
    ((row, _, _),) = decode_payloads([b"\x00\x08\x01"], source)
    assert row == {"e": "NEW"}


@pytest.mark.parametrize(
    ("held", "is_whole"),
    [
        (b"\x08\x01", True),
        (b"\x08\x01\x1a\x02\x08\x01", True),
        # Unknown fields in the message and in a nested one, a missing required field, broken texts.
        (b"\x08\x01\x98\x06\x01", False),
        (b"\x08\x01\x1a\x05\x08\x01\x98\x06\x01", False),
        (b"", False),
        (b"\x08\x01\x12\x01\xff", False),
        (b"\x08\x01\x22\x05\x0a\x01\xff\x10\x01", False),
        (b"\x08\x01\x2a\x03\x08\x01\x12", False),
        (b"\x08\x01\x2a\x05\x08\x01\x12\x01\xff", True),
    ],
)
def test_faults_inside_an_any_are_found(held: bytes, is_whole: bool) -> None:
    """Its JSON would skip values that it cannot represent."""
    source = """
      syntax = "proto2";
      import "google/protobuf/any.proto";
      message M { optional google.protobuf.Any any = 1; }
      message Held {
        required int32 id = 1;
        optional string text = 2;
        optional Held inner = 3;
        map<string, int32> by = 4;
        map<int32, bytes> raw = 5;
      }
    """
    written: Any = message(source, "M")
    written.any.type_url, written.any.value = "x/Held", held
    ((row, reason, detail),) = decode_payloads([b"\x00" + written.SerializeToString()], source)
    if is_whole:
        assert json.loads(row["any"])["id"] == 1
    else:
        assert (row, reason, detail) == (None, "malformed", "any")


@pytest.mark.parametrize(
    "values",
    [{}, {"@type": "x/google.protobuf.Any", "value": {}}, {"@type": "x/shop.M", "any": {}}],
)
def test_an_empty_any_is_an_empty_object(values: dict[str, Any]) -> None:
    """Protobuf's JSON is the same, even within another Any."""
    written: Any = message(ALL, "shop.M", {"any": values})
    ((row, reason, _),) = decode_payloads([b"\x00" + written.SerializeToString()])
    assert reason is None
    pool = written.DESCRIPTOR.file.pool
    own = json_format.MessageToDict(written.any, descriptor_pool=pool)
    assert json.loads(row["any"]) == own == values


def _any(content: bytes, depth: int = 1) -> bytes:
    """Return a message with nested Anys, of which the innermost has this content."""
    for _ in range(depth):
        written: Any = message(ALL, "shop.M")
        written.any.type_url = "x/google.protobuf.Any"
        written.any.value = content
        content = written.any.SerializeToString()
    return b"\x00" + bytes(written.SerializeToString())


_WHOLE = proto_bytes(ALL, "shop.M", {"string": "abc", "leg": {"qty": 1}})


def _timestamp(seconds: int, nanos: int = 0) -> bytes:
    written: Any = message(ALL, "shop.M")
    written.legs.add()
    written.at.seconds, written.at.nanos = seconds, nanos
    return b"\x00" + bytes(written.SerializeToString())


@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        (b"", None),
        (_WHOLE[:-1], None),
        (_WHOLE + b"\x08", None),
        # An unknown field in the message, in a nested message, and in an entry of a map.
        (_WHOLE + b"\xf8\x3f\x01", None),
        (b"\x00\x8a\x01\x03\xf8\x3f\x01", None),
        (b"\x00\xc2\x01\x07\x0a\x01a\x10\x01\x18\x01", None),
        # A known field with the wire type of another type.
        (b"\x00\x0d\x00\x00\x00\x00", None),
        # Text that is not UTF-8.
        (b"\x00\x72\x02\xff\xfe", None),
        (_timestamp(253_402_300_800), "at"),
        (_timestamp(-62_135_596_801), "at"),
        (_timestamp(0, 10**9), "at"),
        (_timestamp(0, -1), "at"),
        # A duration of more than 10,000 years.
        (b"\x00\x8a\x02\x0b\x08" + b"\xff" * 8 + b"\x7f", None),
        (_any(b"\xff"), "any"),
        (_any(b"", depth=2000), "any"),
        # Indexes of other messages, and invalid indexes.
        (b"\x02\x02", "message 1"),
        (b"\x04\x02\x00", "message 1.0"),
        (b"\x02\x64" + _WHOLE[1:], "message 50"),
        (b"\x04\x02", None),
        (b"\x01" + _WHOLE[1:], None),
    ],
)
def test_an_incomplete_message_is_malformed(payload: bytes, detail: str | None) -> None:
    """Other messages of the batch are read."""
    good = decode_payloads([_WHOLE])
    found = decode_payloads([_WHOLE, payload, None, _WHOLE])
    assert found[1][:2] == (None, "malformed")
    if detail is not None:
        assert found[1][2] == detail
    assert [found[0], *found[2:]] == [*good, (None, None, None), *good]


def test_the_detail_is_the_path_of_the_wrong_field() -> None:
    """This holds for one wrong message of many, and for every second one."""
    source = """
      syntax = "proto3";
      import "google/protobuf/timestamp.proto";
      message A { int32 number = 1; repeated B bs = 2; }
      message B { map<string, google.protobuf.Timestamp> times = 1; }
    """
    rows: list[bytes | None] = []
    for number in range(100):
        written: Any = message(source, "A", {"number": number})
        if number % 2 or number == 40:
            written.bs.add().times["x"].seconds = 2**60
        rows.append(b"\x00" + written.SerializeToString())
    for number, (value, reason, detail) in enumerate(decode_payloads(rows, source)):
        if number % 2 or number == 40:
            assert (value, reason, detail) == (None, "malformed", "bs[].times{}")
        else:
            assert (value["number"], reason, detail) == (number, None, None)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_faults_of_a_batch_do_not_affect_other_messages(seed: int) -> None:
    """The result equals the result of each message in a batch of one."""
    source = """
      syntax = "proto2";
      import "google/protobuf/timestamp.proto";
      message A {
        optional string text = 1;
        optional google.protobuf.Timestamp at = 2;
        repeated B bs = 3;
        map<string, string> by = 4;
        map<int32, B> inner = 5;
      }
      message B { repeated google.protobuf.Timestamp times = 1; optional string text = 2; }
    """
    good, bad = b"\x08\x01", b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"
    random = Random(seed)

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    def moment() -> bytes:
        return random.choice([good, good, good, bad])

    def text() -> bytes:
        return random.choice([b"a", b"b", b"", b"\xff"])

    def inner() -> bytes:
        times = b"".join(field(1, moment()) for _ in range(random.randrange(3)))
        return times + field(2, text())

    def payload() -> bytes | None:
        parts = [
            field(1, text()),
            field(2, moment()),
            *(field(3, inner()) for _ in range(random.randrange(3))),
            *(field(4, field(1, text()) + field(2, text())) for _ in range(random.randrange(3))),
            *(
                field(5, b"\x08" + bytes([random.randrange(3)]) + field(2, inner()))
                for _ in range(random.randrange(3))
            ),
        ]
        some = [each for each in parts if random.random() < 0.4]
        return random.choice([b"\x00" + b"".join(some)] * 9 + [None])

    payloads = [payload() for _ in range(500)]
    schema = _descriptors(source)
    together = read(pa.array(payloads, pa.binary()), schema).to_pylist()
    alone = [read(pa.array([each], pa.binary()), schema).to_pylist()[0] for each in payloads]
    assert together == alone
    details = {row["detail"] for row in together}
    expected = {
        "text",
        "at",
        "bs[].text",
        "bs[].times[]",
        "by{}",
        "inner{}.text",
        "inner{}.times[]",
    }
    assert details == {None, *expected}


def test_proto2_is_read_as_strictly_as_proto3() -> None:
    """Its parser checks neither UTF-8 nor required fields, and its enums are closed."""
    source = """
      syntax = "proto2";
      message A {
        required int32 number = 1;
        optional string text = 2;
        repeated group Leg = 3 { optional int32 qty = 1; }
        optional Side side = 4;
        map<string, int32> by = 5;
        optional int32 given = 6 [default = 5];
        extensions 100 to 200;
      }
      enum Side { BUY = 1; }
      extend A { optional int32 more = 100; }
    """
    good: dict[str, Any] = {
        "number": 1,
        "text": None,
        "leg": [],
        "side": None,
        "by": [],
        "given": None,
    }
    assert decode_payloads(
        [
            b"\x00\x08\x01",
            b"\x00\x08\x01\x1b\x08\x02\x1c",
            b"\x00",
            b"\x00\x08\x01\x12\x02\xff\xfe",
            b"\x00\x08\x01\x20\x07",
            b"\x00\x08\x01\x2a\x06\x0a\x02\xff\xfe\x10\x01\x2a\x04\x0a\x00\x10\x01",
            b"\x00\x08\x01\xa0\x06\x01",
        ],
        source,
    ) == [
        (good, None, None),
        ({**good, "leg": [{"qty": 2}]}, None, None),
        (None, "malformed", None),
        (None, "malformed", "text"),
        (None, "malformed", None),
        (None, "malformed", "by{}"),
        (None, "malformed", None),
    ]


def test_an_empty_batch_has_the_type_of_the_column() -> None:
    """Spark may send one."""
    made = read(pa.array([], pa.binary()), _descriptors(ALL))
    assert len(made) == 0
    assert made.type.field("value").type.field("leg").type.field("qty").type == pa.int32()

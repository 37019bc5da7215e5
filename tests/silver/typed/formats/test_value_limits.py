"""Records with too many values for the memory of a worker."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.silver.typed.formats.test_protobuf import schema as protobuf_schema
from tidemark.silver.typed.expected_values import expected_value
from tidemark.silver.typed.formats import json_reader, protobuf_reader
from tidemark.silver.typed.formats.value_limits import MAX_VALUES, TOO_MANY_VALUES
from tidemark.silver.typed.json_types import json_object
from tidemark.silver.typed.payload_values import MalformedPayload
from tidemark.spec.decode import Format, PayloadSpec, QuarantineReason
from tidemark.spec.fields import ListOf, Struct

_SCHEMA = Struct((("a", ListOf("long")), ("b", "string")))
_SPEC = PayloadSpec(format=Format.JSON, schema=_SCHEMA)
_SMALL = b'{"a": [1], "b": "x"}'


def _list(elements: int, name: str = "a") -> bytes:
    return b'{"%s":[%s]}' % (name.encode(), b",".join([b"1"] * elements))


@pytest.mark.parametrize(
    "payload",
    [
        _list(MAX_VALUES),
        _list(MAX_VALUES, "unnamed"),
        b'{"a":[%s]}' % b",".join([b"[]"] * MAX_VALUES),
        b"{%s}" % b",".join([b'"x":{}'] * MAX_VALUES),
        b'{"b":"\\"","a":[%s]}' % b",".join([b"1"] * MAX_VALUES),
        _list(MAX_VALUES)[:-2],
    ],
    ids=["list", "unnamed", "lists", "objects", "escape", "truncated"],
)
def test_a_json_record_with_too_many_values_is_malformed(payload: bytes) -> None:
    """Other records of the batch are decoded, and `verify` agrees."""
    found = json_reader.read(pa.array([_SMALL, payload, None, _SMALL], pa.binary()), _SCHEMA)
    small, large, missing, other = found.to_pylist()
    assert large == {
        "value": None,
        "reason": QuarantineReason.MALFORMED,
        "detail": TOO_MANY_VALUES,
    }
    assert small == other == {"value": {"a": [1], "b": "x"}, "reason": None, "detail": None}
    assert missing == {"value": None, "reason": None, "detail": None}
    with pytest.raises(MalformedPayload):
        expected_value(payload, _SPEC, None)
    assert json_object(payload) is None


@pytest.mark.parametrize(
    "payload",
    [
        _list(MAX_VALUES - 1),
        b'{"a":[1],"b":"%s"}' % (b",[{" * MAX_VALUES),
        b'{"a":[1],"b":"%s"}' % (b'\\",' * MAX_VALUES),
        b'{"a":[1],"b":"%s"}' % (b"x" * 2 * MAX_VALUES),
    ],
    ids=["list", "text", "escapes", "long text"],
)
def test_a_large_json_record_within_the_limit_is_decoded(payload: bytes) -> None:
    (found,) = json_reader.read(pa.array([payload], pa.binary()), _SCHEMA).to_pylist()
    assert found["reason"] is None
    assert found["value"] == expected_value(payload, _SPEC, None)


def test_a_text_that_is_not_utf8_has_this_reason_alone() -> None:
    payload = _list(MAX_VALUES)[:-1] + b',"\xff":1}'
    (found,) = json_reader.read(pa.array([payload], pa.binary()), _SCHEMA).to_pylist()
    assert (found["reason"], found["detail"]) == (QuarantineReason.NOT_UTF8, None)


def _number(value: int) -> bytes:
    """Return a number in Protobuf's form."""
    rest, low = value >> 7, value & 127
    return bytes([low | 128]) + _number(rest) if rest else bytes([low])


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _number(len(body)) + body


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        (_field(1, b"\1" * MAX_VALUES), False),
        (_field(1, b"\1" * (MAX_VALUES + 1)), True),
        (_field(2, b"") * (MAX_VALUES + 1), True),
        (_field(2, _field(1, b"\1" * (MAX_VALUES // 2))) * 2, True),
        (_field(3, _field(2, _field(1, b"\1" * (MAX_VALUES + 1)))), True),
        (_field(4, b"x" * 2 * MAX_VALUES), False),
    ],
    ids=["at limit", "numbers", "messages", "nested", "in a map", "text"],
)
def test_a_protobuf_record_with_too_many_elements_is_malformed(
    body: bytes, *, is_refused: bool
) -> None:
    fields = (
        "message B { repeated int64 x = 1; } "
        "repeated int64 a = 1; repeated B b = 2; map<string, B> c = 3; string d = 4;"
    )
    payloads = pa.array([b"\0" + body, b"\0\x0a\1\7"], pa.binary())
    found = protobuf_reader.read(payloads, protobuf_schema(fields))
    reason = QuarantineReason.MALFORMED if is_refused else None
    detail = TOO_MANY_VALUES if is_refused else None
    assert (found[0]["reason"].as_py(), found[0]["detail"].as_py()) == (reason, detail)
    assert found[1]["value"]["a"].as_py() == [7]

"""Decodes keys and values without Spark, and compares the results with columns of the typed table.

`tidemark verify` compares with it what Spark has decoded. Both sides share the types of columns,
and the reader of Protobuf. Everything else is read by other libraries: JSON by Python, Avro by
fastavro.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from decimal import DecimalException
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import Any, assert_never

import fastavro
from fastavro.schema import SchemaParseException

from tidemark.silver.typed.formats import avro
from tidemark.silver.typed.formats.column import column_of
from tidemark.silver.typed.payload_values import MalformedPayload, decoded_value
from tidemark.spec.decode import FRAME_BYTES, REST, Format, Part, PayloadSpec, RegisteredSchema
from tidemark.spec.fields import (
    UNION_MEMBER,
    Decimal,
    FieldType,
    ListOf,
    MapOf,
    Struct,
    UnsupportedSchema,
)

_SCHEMAS = 1_000
"""Number of parsed schemas in memory."""
_RANGES = {"integer": range(-(2**31), 2**31), "long": range(-(2**63), 2**63)}
_MAX_DIGITS = 38
"""Digits of a decimal that Spark reads. It cuts off the others."""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})?", re.ASCII
)
_DECIMAL = re.compile(r"-?(\d+\.?\d*|\.\d+)(E-?\d+)?", re.ASCII)
_WIDE = ({"int", "long"}, {"float", "double"})
"""Members of unions that have one column."""
_AVRO_PARTS = frozenset(
    (
        *("type", "name", "namespace", "fields", "items", "values", "symbols"),
        *("size", "precision", "scale", "logicalType"),
    )
)
"""The parts of an Avro schema that a reader needs: no defaults, aliases or properties."""


class NotJudged(Exception):
    """This module cannot decode or compare a value. The text is the reason, for reports."""


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON value that a column stores as text. Spark chooses the form of the text.

    Attributes:
        value: The value, with `decimal.Decimal` for numbers with a fraction or an exponent.
        is_rest: Whether the value is the object of the fields without a column.
        whole: The object around it, if `is_rest`.
    """

    value: Any
    is_rest: bool = False
    whole: Any = None


def expected_value(
    payload: bytes | None, spec: PayloadSpec, schema: RegisteredSchema | None
) -> Any:
    """Return the value that the typed table should have for a payload.

    Args:
        payload: A key or a value; with a frame for a format with schema ids.
        spec: How it is decoded.
        schema: The schema of the frame; None for a format without schema ids.

    Returns:
        None for a missing payload; a mapping for a struct or a map; `datetime` and `date`;
        `decimal.Decimal`; and `JsonText`.

    Raises:
        MalformedPayload: A decode would put the record into quarantine.
        NotJudged: This function cannot decode the value.
    """
    if payload is None:
        return None
    match spec.format:
        case Format.BINARY:
            return payload
        case Format.STRING:
            return _text(payload)
        case Format.JSON:
            return _json_object(payload, spec.schema or Struct(()), keeps_rest=spec.keeps_rest)
        case Format.AVRO | Format.JSON_SCHEMA | Format.PROTOBUF:
            if schema is None:
                raise ValueError(f"format {spec.format} without a schema")
            return _framed(payload, spec.format, schema)
        case _:
            assert_never(spec.format)


def differing_columns(expected: Any, found: Any, kind: FieldType, path: str) -> Iterator[str]:
    """Yield the paths at which a typed value differs from the expected one.

    Args:
        expected: A result of `expected_value`, or a part of it.
        found: The value in the typed table, as Python value of Arrow.
        kind: The type of the column.
        path: The name of the column.

    Raises:
        NotJudged: The values cannot be compared.
    """
    if expected is None or found is None:
        if expected is not found:
            yield path
        return
    match kind:
        case Struct():
            yield from _differing_fields(expected, found, kind, path)
        case ListOf(element=element):
            if not _same_elements(expected, found, element):
                yield f"{path}[]"
        case MapOf(value=value):
            if not _same_entries(dict(expected), found, value):
                yield f"{path}{{}}"
        case _:
            if not _same_scalar(expected, found, kind):
                yield path


def _differing_fields(
    expected: Mapping[str, Any], found: Mapping[str, Any], kind: Struct, path: str
) -> Iterator[str]:
    inner = dict(kind.fields)
    for name, each in inner.items():
        yield from differing_columns(expected.get(name), found.get(name), each, f"{path}.{name}")
    for name in expected.keys() - inner.keys():
        if expected[name] is not None:
            yield f"{path}.{name}"


def _same_entries(
    expected: Mapping[str, Any], found: Sequence[tuple[str, Any]], kind: FieldType
) -> bool:
    entries = dict(found)
    if len(entries) < len(found):
        raise NotJudged("a map has a key twice")
    if expected.keys() != entries.keys():
        return False
    return _same_elements([*expected.values()], [entries[key] for key in expected], kind)


def _same_elements(expected: Sequence[Any], found: Sequence[Any], kind: FieldType) -> bool:
    return len(expected) == len(found) and not any(
        any(differing_columns(one, other, kind, "element"))
        for one, other in zip(expected, found, strict=True)
    )


def _same_scalar(expected: Any, found: Any, kind: FieldType) -> bool:
    if isinstance(expected, JsonText):
        return _is_text_of(expected, found)
    if kind in ("float", "double"):
        return _same_float(float(expected), found)
    return bool(expected == found)


def _same_float(expected: float, found: Any) -> bool:
    """Return whether two numbers have the same bits, or are both NaN."""
    if not isinstance(found, float) or math.isnan(expected) or math.isnan(found):
        return isinstance(found, float) and math.isnan(expected) and math.isnan(found)
    return expected == found and math.copysign(1, expected) == math.copysign(1, found)


def _text(payload: bytes) -> str:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise MalformedPayload from wrong


# -- JSON ------------------------------------------------------------------------------------------


def _json_object(payload: bytes, schema: Struct, *, keeps_rest: bool = False) -> Mapping[str, Any]:
    content = _parsed(_text(payload))
    if not isinstance(content, dict):
        raise MalformedPayload
    made = dict(_json_value(content, schema))
    if keeps_rest:
        rest = {name: each for name, each in content.items() if name not in made}
        made[REST] = JsonText(rest, is_rest=True, whole=content) if rest else None
    return made


def _parsed(text: str) -> Any:
    """Return a JSON value, with `decimal.Decimal` for numbers with a fraction or an exponent."""
    try:
        return json.loads(text, parse_float=Number, parse_constant=_refuse)
    except RecursionError:
        raise NotJudged("JSON nested deeper than Python reads") from None
    except (ValueError, DecimalException) as wrong:
        raise MalformedPayload from wrong


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _json_value(value: Any, kind: FieldType) -> Any:
    """Return a parsed value in the type of its field."""
    if value is None:
        return None
    match kind, value:
        case Struct(), dict():
            return {name: _json_value(value.get(name), each) for name, each in kind.fields}
        case ListOf(element=element), list():
            return [_json_value(each, element) for each in value]
        case "string", _:
            _check_text(value)
            return value if isinstance(value, str) else JsonText(value)
        case "boolean", bool():
            return value
        case ("boolean", _) | (_, bool() | dict() | list()):
            raise MalformedPayload
        case _:
            return (
                _json_number(value, kind)
                if isinstance(kind, Decimal)
                else _json_scalar(value, kind)
            )


def _json_scalar(value: int | Number | str, kind: FieldType) -> Any:
    match kind, value:
        case (("integer" | "long"), (int() | Number())):
            return _integer(value, _RANGES[str(kind)])
        case (("float" | "double"), (int() | Number())):
            return _float(value, is_single=kind == "float")
        case (("date" | "timestamp"), str()):
            return _moment(value, str(kind))
        case _:
            raise MalformedPayload


def _json_number(value: int | Number | str, kind: Decimal) -> Number:
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise NotJudged("a decimal in quotes in a form that only Java reads")
    return _decimal(Number(value), kind)


def _check_text(value: Any) -> None:
    """Check that Spark can write a JSON value as text.

    Raises:
        MalformedPayload: It has an unpaired surrogate, or a number that exceeds a double.
    """
    match value:
        case dict():
            for each in (*value, *value.values()):
                _check_text(each)
        case list():
            for each in value:
                _check_text(each)
        case Number() if math.isinf(_double(value)):
            raise MalformedPayload
        case str() if _has_surrogate(value):
            raise MalformedPayload


def _integer(value: int | Number, allowed: range) -> int:
    if isinstance(value, Number):
        # The digits of a huge exponent would not fit into memory.
        if value.adjusted() > len(str(allowed.stop)) or value != value.to_integral_value():
            raise MalformedPayload
        value = int(value)
    if value not in allowed:
        raise MalformedPayload
    return value


def _float(value: int | Number, *, is_single: bool) -> float:
    try:
        made = float(value)
        if is_single:
            made = _single(made, value)
    except OverflowError as wrong:
        raise MalformedPayload from wrong
    if math.isinf(made):
        raise MalformedPayload
    return made


def _single(nearest: float, value: int | Number) -> float:
    """Return the nearest number of four bytes, rounded once.

    Args:
        nearest: The nearest number of eight bytes.
        value: The number.
    """
    is_between_two = struct.unpack("<Q", struct.pack("<d", nearest))[0] & (2**29 - 1) == 2**28
    if is_between_two and (rest := Fraction(value) - Fraction(nearest)):
        nearest = math.nextafter(nearest, math.inf if rest > 0 else -math.inf)
    return float(struct.unpack("<f", struct.pack("<f", nearest))[0])


def _decimal(value: Number, kind: Decimal) -> Number:
    """Return a number, which has no digit more than its type."""
    _, digits, exponent = value.as_tuple()
    written = "".join(map(str, digits))
    lowest = int(exponent) + len(written) - len(written.rstrip("0"))
    is_too_large = value.adjusted() >= kind.precision - kind.scale
    if not is_too_large and lowest < kind.precision - kind.scale - _MAX_DIGITS:
        raise NotJudged("a decimal with more digits than Spark reads")
    if value and (is_too_large or lowest < -kind.scale):
        raise MalformedPayload
    return value


def _moment(text: str, kind: str) -> date | datetime:
    try:
        if kind == "date":
            if not _DATE.fullmatch(text):
                raise MalformedPayload
            return date.fromisoformat(text)
        if not _TIMESTAMP.fullmatch(text):
            raise MalformedPayload
        made = datetime.fromisoformat(text)
        return made.replace(tzinfo=UTC) if made.tzinfo is None else made.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise MalformedPayload from wrong


def _is_text_of(expected: JsonText, found: Any) -> bool:
    """Return whether a text is the JSON of a value."""
    try:
        read = _parsed(found)
    except MalformedPayload:
        return False
    if _same_json(expected.value, read):
        return True
    if not expected.is_rest or not isinstance(read, dict):
        return False
    # Spark writes values that it cannot represent as text, or the whole object.
    return _same_json(expected.whole, read) or (
        read.keys() == expected.value.keys()
        and all(_is_member(each, read[name]) for name, each in expected.value.items())
    )


def _is_member(value: Any, read: Any) -> bool:
    if isinstance(value, str) or not isinstance(read, str):
        return _same_json(value, read)
    return _is_text_of(JsonText(value), read)


def _same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; numbers are if they are the same double."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same_json(one[n], other[n]) for n in one)
        case list(), list():
            return len(one) == len(other) and all(map(_same_json, one, other))
        case (bool(), _) | (_, bool()):
            return one is other
        case ((int() | Number()), (int() | Number())):
            is_exact = isinstance(one, int) and isinstance(other, int)
            return one == other or (not is_exact and _double(one) == _double(other))
        case str(), str() if _has_surrogate(one):
            raise NotJudged("an unpaired surrogate in a field without a column")
        case _:
            return bool(one == other)


def _double(number: int | Number) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text)


# -- formats with schema ids -----------------------------------------------------------------------


def _framed(payload: bytes, kind: Format, schema: RegisteredSchema) -> Any:
    body = payload[FRAME_BYTES:]
    try:
        if kind is Format.AVRO:
            return _avro_value(body, schema.text)
        if kind is Format.JSON_SCHEMA:
            return _json_object(body, _json_column(schema.text))
        return decoded_value(payload, schema)
    except UnsupportedSchema:
        raise NotJudged(f"schema {schema.id} has no column") from None


@lru_cache(maxsize=_SCHEMAS)
def _json_column(text: str) -> Struct:
    column = column_of(Format.JSON_SCHEMA, text)
    if not isinstance(column, Struct):
        raise UnsupportedSchema("the schema does not describe objects")
    return column


@lru_cache(maxsize=_SCHEMAS)
def _avro_schema(text: str) -> tuple[Any, FieldType]:
    """Return a schema for the reader, and the type of its column."""
    try:
        schema = _with_named_members(json.loads(text), count())
        return fastavro.parse_schema(schema), avro.column_of(text)
    except (SchemaParseException, ValueError, KeyError) as wrong:
        raise UnsupportedSchema("the schema is not valid Avro") from wrong


def _with_named_members(schema: Any, numbers: Iterator[int]) -> Any:
    """Return a schema of the same binary form, in which members of unions are records.

    The only field of such a record has the name that the member has in the typed table.
    """
    if isinstance(schema, list):
        names = [_type_name(each) for each in schema]
        members = {name for name in names if name != "null"}
        made = [_with_named_members(each, numbers) for each in schema]
        if len(members) < 2 or members in _WIDE:
            return made
        return [
            each if name == "null" else _record_of(f"{UNION_MEMBER}{name}", each, next(numbers))
            for name, each in zip(names, made, strict=True)
        ]
    if not isinstance(schema, dict):
        return schema
    kept = {name: each for name, each in schema.items() if name in _AVRO_PARTS}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _with_named_members(kept[name], numbers)
    if "fields" in kept:
        kept["fields"] = [
            {"name": each["name"], "type": _with_named_members(each["type"], numbers)}
            for each in kept["fields"]
        ]
    if avro.logical_type(kept) is None:
        kept.pop("logicalType", None)
    return kept


def _record_of(field: str, schema: Any, number: int) -> dict[str, Any]:
    fields = [{"name": field, "type": schema}]
    return {"type": "record", "name": f"tidemark_member_{number}", "fields": fields}


def _type_name(schema: Any) -> str:
    """Return the name of a type without its namespace."""
    while isinstance(schema, dict):
        inner = schema.get("type")
        is_named = inner in ("record", "error", "enum", "fixed")
        schema = schema["name"] if is_named else inner
    return str(schema).rpartition(".")[2]


def _avro_value(body: bytes, text: str) -> Any:
    schema, kind = _avro_schema(text)
    if avro.is_raw(text):
        if not isinstance(kind, Decimal):
            return body
        return _unscaled(int.from_bytes(body, "big", signed=True), kind)
    stream = io.BytesIO(body)
    try:
        value: Any = fastavro.schemaless_reader(stream, schema, None)
    except (ArithmeticError, EOFError, LookupError, TypeError, ValueError, struct.error) as wrong:
        raise MalformedPayload from wrong
    if stream.read(1):
        raise MalformedPayload
    return value


def _unscaled(number: int, kind: Decimal) -> Number:
    if len(str(abs(number))) > kind.precision:
        raise MalformedPayload
    # A text is read without rounding.
    return Number(f"{number}e-{kind.scale}")


def schema_id_of(payload: bytes | None) -> int | None:
    """Return the schema id at the beginning of a payload; None for a missing payload.

    Raises:
        MalformedPayload: The payload does not begin with one.
    """
    if payload is None:
        return None
    if len(payload) < FRAME_BYTES or payload[0]:
        raise MalformedPayload
    return int.from_bytes(payload[1:FRAME_BYTES])


def has_schema_id_header(headers: Sequence[Mapping[str, Any]] | None, part: Part) -> bool:
    """Return whether a record header has the schema id of a key or a value."""
    return any(each["key"] == part.schema_id_header for each in headers or ())

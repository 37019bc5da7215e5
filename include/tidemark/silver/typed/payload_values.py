"""Decodes payloads with a schema id without Spark, for drafts.

A run decodes with Spark, which also refuses an Avro `boolean` byte other than 0 and 1, and a
negative index of an enum.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from tidemark.silver.typed.formats import avro, json_schema
from tidemark.silver.typed.json_types import TypeCounts, json_object
from tidemark.spec.decode import FRAME_BYTES, Format, QuarantineReason, RegisteredSchema
from tidemark.spec.fields import Decimal, FieldType, Struct, UnsupportedSchema

_SCHEMAS = 1_000
"""Number of parsed schemas in memory."""
NESTED: list[Any] = []
"""Stands for a value that is an object, a list, a map or bytes. Drafts have no rule about it."""


class MalformedPayload(ValueError):
    """A payload does not match its schema."""


def decoded_fields(payload: bytes, schema: RegisteredSchema) -> Mapping[str, Any]:
    """Return the top-level fields of a payload as JSON values.

    Dates and times become text, and decimals become floats.

    Args:
        payload: A key or a value with its frame.
        schema: The schema of the payload.

    Returns:
        The fields; empty for a schema without a column, for a value without fields, and for
        Protobuf, which Spark's SQL cannot decode.

    Raises:
        MalformedPayload: A run would put the record into quarantine.
    """
    body = payload[FRAME_BYTES:]
    try:
        if schema.kind == Format.AVRO.kind:
            return _avro_fields(body, schema.text)
        if schema.kind == Format.JSON_SCHEMA.kind:
            return _json_fields(body, schema.text)
        if schema.kind == Format.PROTOBUF.kind:
            _protobuf_value(body, schema.text)
    except UnsupportedSchema:
        return {}
    return {}


def decoded_value(payload: bytes, schema: RegisteredSchema) -> Any:
    """Return a whole payload, as Python values of the format's reader.

    Args:
        payload: A key or a value with its frame.
        schema: The schema of the payload.

    Raises:
        MalformedPayload: A run would put the record into quarantine.
        UnsupportedSchema: A run would not decode payloads of this schema.
    """
    body = payload[FRAME_BYTES:]
    if schema.kind == Format.AVRO.kind:
        parsed, _ = _avro_schema(schema.text)
        return body if parsed is None else avro_value(body, parsed)
    if schema.kind == Format.JSON_SCHEMA.kind:
        return _json_fields(body, schema.text)
    if schema.kind == Format.PROTOBUF.kind:
        return _protobuf_value(body, schema.text)
    raise UnsupportedSchema(f"no format for schemas of kind {schema.kind}")


def avro_columns(text: str) -> Mapping[str, FieldType]:
    """Return the types of the top-level fields of an Avro schema; empty if it is unusable."""
    try:
        kind = _avro_schema(text)[1]
    except UnsupportedSchema:
        return {}
    return dict(kind.fields) if isinstance(kind, Struct) else {}


@lru_cache(maxsize=_SCHEMAS)
def _avro_schema(text: str) -> tuple[Any, FieldType]:
    """Return a schema for the reader, and the type of its column; None for raw values."""
    kind = avro.column_of(text)
    if avro.is_raw(text):
        return None, kind
    try:
        schema = json.loads(text, object_hook=_without_ignored_type)
        return fastavro.parse_schema(schema), kind
    except (SchemaParseException, ValueError) as wrong:
        raise UnsupportedSchema("the schema is not valid Avro") from wrong


def _without_ignored_type(part: dict[str, Any]) -> dict[str, Any]:
    """Remove a logical type that runs ignore, such as `uuid`: the reader would use it."""
    if avro.logical_type(part) is None:
        part.pop("logicalType", None)
    return part


def _avro_fields(body: bytes, text: str) -> Mapping[str, Any]:
    schema, kind = _avro_schema(text)
    if schema is None:
        return {}
    value = avro_value(body, schema)
    if not isinstance(kind, Struct):
        return {}
    return {name: _json_value(value[name], each) for name, each in kind.fields}


def avro_value(body: bytes, schema: Any) -> Any:
    """Return the value of a payload without its frame, as fastavro reads it.

    Args:
        body: The payload without its frame.
        schema: The parsed schema.

    Raises:
        MalformedPayload: The payload does not match the schema.
    """
    stream = io.BytesIO(body)
    try:
        value: Any = fastavro.schemaless_reader(stream, schema, None)
    except (ArithmeticError, EOFError, LookupError, TypeError, ValueError, struct.error) as wrong:
        raise MalformedPayload from wrong
    if stream.read(1):
        raise MalformedPayload
    return value


def _json_value(value: Any, kind: FieldType) -> Any:
    match kind, value:
        case _, None:
            return None
        case Decimal(), _:
            # The reader rounds a number with too many digits, so that its scale differs.
            if value.as_tuple().exponent != -kind.scale:
                raise MalformedPayload
            return float(value)
        case (("float" | "double"), _):
            # NaN exceeds every upper limit, as in Spark.
            return math.inf if math.isnan(value) else float(value)
        case _, date() | datetime():
            return value.isoformat()
        case "string", str():
            return str(value)
        case (("boolean" | "integer" | "long"), int()):
            return value
        case _:
            return NESTED


@lru_cache(maxsize=_SCHEMAS)
def json_columns(text: str) -> Struct:
    """Return the type of the column for objects of a JSON Schema. See `json_schema.column_of`."""
    return json_schema.column_of(text)


def _json_fields(body: bytes, text: str) -> Mapping[str, Any]:
    content = json_object(body)
    if content is None:
        raise MalformedPayload
    for name, kind in json_columns(text).fields:
        counts = TypeCounts()
        counts.add(content.get(name))
        if counts.fitting(kind) < counts.values:
            raise MalformedPayload
    return content


def _protobuf_value(body: bytes, text: str) -> Any:
    # Loads PyArrow, which drafts of other formats do not need.
    import pyarrow as pa

    from tidemark.silver.typed.formats import protobuf_reader

    (found,) = protobuf_reader.read(pa.array([body], pa.binary()), text).to_pylist()
    if found["reason"] == QuarantineReason.MALFORMED:
        raise MalformedPayload
    return found["value"]

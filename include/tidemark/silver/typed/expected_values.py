"""Decodes keys and values without Spark, for the comparison with typed rows.

`tidemark verify` compares the results with what Spark has decoded. Both sides share the types of
columns, and the reader of Protobuf. The module `json` reads JSON, and fastavro reads Avro.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal as Number
from functools import lru_cache
from itertools import count
from typing import Any, assert_never

import fastavro
from fastavro.schema import SchemaParseException

from tidemark.silver.typed.formats import avro
from tidemark.silver.typed.json_values import NotJudged, json_object, utf8_text
from tidemark.silver.typed.payload_values import (
    MalformedPayload,
    avro_value,
    decoded_value,
    json_columns,
)
from tidemark.silver.typed.registry_answers import leading_schema_ids
from tidemark.spec.decode import FRAME_BYTES, Format, Part, PayloadSpec, RegisteredSchema
from tidemark.spec.fields import UNION_MEMBER, Decimal, FieldType, Struct, UnsupportedSchema

_SCHEMAS = 1_000
"""Maximum number of parsed schemas in memory."""
_WIDE = ({"int", "long"}, {"float", "double"})
"""Members of unions that have one column."""
_AVRO_PARTS = frozenset(
    (
        *("type", "name", "namespace", "fields", "items", "values", "symbols"),
        *("size", "precision", "scale", "logicalType"),
    )
)
"""The parts of an Avro schema that a reader needs: no defaults, aliases or properties."""


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
            return utf8_text(payload)
        case Format.JSON:
            return json_object(payload, spec.schema or Struct(()), keeps_rest=spec.keeps_rest)
        case Format.AVRO | Format.JSON_SCHEMA | Format.PROTOBUF:
            if schema is None:
                raise ValueError(f"format {spec.format} without a schema")
            return _framed(payload, spec.format, schema)
        case _:
            assert_never(spec.format)


def _framed(payload: bytes, kind: Format, schema: RegisteredSchema) -> Any:
    body = payload[FRAME_BYTES:]
    try:
        if kind is Format.AVRO:
            return _avro_value(body, schema.text)
        if kind is Format.JSON_SCHEMA:
            return json_object(body, json_columns(schema.text))
        return decoded_value(payload, schema)
    except UnsupportedSchema:
        raise NotJudged(f"schema {schema.id} has no column") from None


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
    return avro_value(body, schema)


def _unscaled(number: int, kind: Decimal) -> Number:
    if len(str(abs(number))) > kind.precision:
        raise MalformedPayload
    # Unlike arithmetic, the conversion of a text does not round.
    return Number(f"{number}e-{kind.scale}")


def schema_id_of(payload: bytes | None) -> int | None:
    """Return the schema id at the beginning of a payload; None for a missing payload.

    Raises:
        MalformedPayload: The payload does not begin with one.
    """
    if payload is None:
        return None
    ids = leading_schema_ids(payload)
    if not ids:
        raise MalformedPayload
    return ids[0]


def has_schema_id_header(headers: Sequence[Mapping[str, Any]] | None, part: Part) -> bool:
    """Return whether a record header has the schema id of a key or a value."""
    return any(each["key"] == part.schema_id_header for each in headers or ())

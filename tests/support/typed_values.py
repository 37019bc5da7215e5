"""Compares values that Spark has decoded with those of decoding without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tidemark.silver.typed.differing_values import Unjudged, differing_columns
from tidemark.silver.typed.expected_values import expected_value
from tidemark.silver.typed.json_values import NotJudged
from tidemark.spec.decode import PayloadSpec, RegisteredSchema
from tidemark.spec.fields import FieldType, ListOf, MapOf, Struct


def differences(
    payload: bytes | None,
    spec: PayloadSpec,
    value: Any,
    schema: RegisteredSchema | None = None,
    column: FieldType | None = None,
) -> list[str]:
    """Return the fields in which a value of Spark differs.

    Args:
        payload: The key or the value, as it landed.
        spec: How it is decoded.
        value: Spark's value, as plain Python values.
        schema: The schema of a payload with a schema id.
        column: Type of the column; None for the type of the spec.

    Raises:
        NotJudged: A value cannot be compared.
    """
    kind = column or spec.column or "binary"
    expected = expected_value(payload, spec, schema)
    found = [*differing_columns(expected, as_in_arrow(value, kind), kind, "value")]
    for each in found:
        if isinstance(each, Unjudged):
            raise NotJudged(each.reason)
    return [*map(str, found)]


def as_in_arrow(value: Any, kind: FieldType) -> Any:
    """Return a value of Spark as Arrow returns it: maps as pairs, times with a time zone."""
    match kind, value:
        case _, None:
            return None
        case Struct(), _:
            return {name: as_in_arrow(value[name], each) for name, each in kind.fields}
        case ListOf(), _:
            return [as_in_arrow(each, kind.element) for each in value]
        case MapOf(), _:
            return [(key, as_in_arrow(each, kind.value)) for key, each in value.items()]
        case _, datetime():
            return value.replace(tzinfo=value.tzinfo or UTC)
        case _, bytearray():
            return bytes(value)
        case _:
            return value

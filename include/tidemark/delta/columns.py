"""Columns of bronze tables, and Delta types of fields."""

from __future__ import annotations

import re
from typing import TypeAlias

from deltalake import Field, Schema
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from tidemark.spec.fields import Decimal, FieldType, ListOf, MapOf, Struct

DeltaType: TypeAlias = PrimitiveType | ArrayType | StructType | MapType
"""A column type of delta-rs."""


def nullable_column(name: str, kind: str) -> Field:
    """Return a nullable column of a primitive Delta type."""
    return Field(name, PrimitiveType(kind), nullable=True)


_HEADER = StructType([nullable_column("key", "string"), nullable_column("value", "binary")])

BRONZE_SCHEMA = Schema(
    [
        nullable_column("key", "binary"),
        nullable_column("value", "binary"),
        Field("headers", ArrayType(_HEADER, True), nullable=True),
        nullable_column("topic", "string"),
        nullable_column("partition", "integer"),
        nullable_column("offset", "long"),
        nullable_column("timestamp", "timestamp"),
        # Kafka's milliseconds outside the years 1 to 9999; `timestamp` is null then.
        nullable_column("timestamp_out_of_range_ms", "long"),
        nullable_column("timestamp_type", "integer"),
        nullable_column("topic_id", "string"),
        nullable_column("plan_sequence", "long"),
        nullable_column("ingested_at", "timestamp"),
    ]
)
"""A bronze row: all fields of a Kafka record (S4), its origin, and the plan that landed it."""


def delta_type(kind: FieldType) -> DeltaType:
    """Return the Delta type of a field; nested fields are nullable."""
    match kind:
        case Struct():
            return StructType(
                [Field(name, delta_type(each), nullable=True) for name, each in kind.fields]
            )
        case ListOf():
            return ArrayType(delta_type(kind.element), contains_null=True)
        case MapOf():
            return MapType(PrimitiveType("string"), delta_type(kind.value), True)
        case _:
            return PrimitiveType(str(kind))


def field_type(kind: DeltaType) -> FieldType:
    """Return the field type of a Delta type; a type that only Delta has keeps its Delta name."""
    match kind:
        case StructType():
            return Struct(tuple((field.name, field_type(field.type)) for field in kind.fields))
        case ArrayType():
            return ListOf(field_type(kind.element_type))
        case MapType():
            return MapOf(field_type(kind.value_type))
    if found := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", str(kind.type)):
        return Decimal(int(found[1]), int(found[2]))
    return str(kind.type)

"""Columns of typed tables and of quarantine tables."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import Field, Schema

from tidemark.lake.columns import BRONZE_SCHEMA, delta_type, nullable_column
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.fields import FieldType


def typed_schema(decode: DecodeSpec, columns: Mapping[Part, FieldType] | None = None) -> Schema:
    """Return the columns of a typed table: those of a bronze table, with decoded keys and values.

    Args:
        decode: How records are decoded.
        columns: Types of the parts whose schemas are in a registry. A part without a known type has
            no column yet.
    """
    known = {part: spec.column for part, spec in decode.parts.items()} | dict(columns or {})
    decoded = [
        Field(part, delta_type(kind), nullable=True)
        for part in Part
        if (kind := known.get(part)) is not None
    ]
    others = [field for field in BRONZE_SCHEMA.fields if field.name not in list(Part)]
    ids = [nullable_column(part.schema_id, "long") for part in decode.framed_parts]
    return Schema([*decoded, *others, *ids])


QUARANTINE_SCHEMA = Schema(
    [
        *BRONZE_SCHEMA.fields,
        nullable_column("reason", "string"),
        nullable_column("part", "string"),
        nullable_column("detail", "string"),
        nullable_column("schema_id", "long"),
        nullable_column("closed_by", "long"),
        nullable_column("closed_at", "timestamp"),
    ]
)
"""A quarantined row: the bronze row, why it was not decoded, and the plan that closed it."""

"""The type of the column for records of a registry's schema, for each format."""

from __future__ import annotations

from tidemark.silver.typed.formats import avro, json_schema
from tidemark.spec.decode import Format
from tidemark.spec.fields import FieldType


def column_of(kind: Format, text: str) -> FieldType:
    """Return the type of the column for records of a schema.

    Raises:
        SchemaTooLarge: The schema exceeds a limit.
        UnsupportedSchema: The schema has no column.
    """
    if kind is Format.AVRO:
        return avro.column_of(text)
    if kind is Format.JSON_SCHEMA:
        return json_schema.column_of(text)
    # Loads PyArrow, which plans of other formats do not need.
    from tidemark.silver.typed.formats import protobuf_reader

    return protobuf_reader.column_of(text)

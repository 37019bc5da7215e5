"""Columns of typed tables and of quarantine tables."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import Field, Schema

from tidemark.delta.columns import BRONZE_SCHEMA, delta_type, nullable_column
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.table_properties import STATISTICS_COLUMNS
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.fields import FieldType, Struct
from tidemark.spec.flattening import TOMBSTONE, VALUE, flattened, unflattened


def typed_table(
    uri: str, decode: DecodeSpec, columns: Mapping[Part, FieldType] | None = None
) -> DeltaDataTable:
    """Return a typed table. See `typed_schema` for the arguments."""
    return DeltaDataTable(
        uri,
        typed_schema(decode, columns),
        grows=True,
        has_unions=decode.has_unions,
        # Users may add a column `tombstone` to a table with the column `value`.
        excluded={VALUE: None} if decode.flattens else {TOMBSTONE: VALUE},
    )


def typed_table_of_any_columns(uri: str) -> DeltaDataTable:
    """Return a typed table whose keys and values may have columns of an earlier spec."""
    return DeltaDataTable(uri, Schema(_positions()))


def typed_schema(decode: DecodeSpec, columns: Mapping[Part, FieldType] | None = None) -> Schema:
    """Return the columns of a typed table: those of a bronze table, with decoded keys and values.

    The columns with file statistics come first (see `STATISTICS_COLUMNS`).

    Args:
        decode: How records are decoded.
        columns: Types of the parts whose schemas are in a registry. A part without a known type has
            no column yet.
    """
    known = {part: spec.column for part, spec in decode.parts.items()} | dict(columns or {})
    decoded = [
        Field(name, delta_type(kind), nullable=True)
        for part in Part
        if (type_of_part := known.get(part)) is not None
        for name, kind in _columns_of(part, type_of_part, flattens=decode.flattens).items()
    ]
    if decode.flattens:
        decoded.append(nullable_column(TOMBSTONE, "boolean"))
    ids = [nullable_column(part.schema_id, "long") for part in decode.framed_parts]
    positions = _positions()
    first = [field for field in positions if field.name in STATISTICS_COLUMNS]
    others = [field for field in positions if field.name not in STATISTICS_COLUMNS]
    return Schema([*first, *decoded, *others, *ids])


def _positions() -> list[Field]:
    """Return the columns of a bronze table without keys and values."""
    return [field for field in BRONZE_SCHEMA.fields if field.name not in list(Part)]


def _columns_of(part: Part, kind: FieldType, *, flattens: bool) -> Mapping[str, FieldType]:
    if part is Part.VALUE and flattens:
        return flattened(kind) if isinstance(kind, Struct) else {}
    return {part.value: kind}


def decoded_parts(columns: Mapping[str, FieldType], *, flattens: bool) -> Mapping[Part, FieldType]:
    """Return the types of keys and values in a table; a part without a column is left out.

    Args:
        columns: Columns of a typed table or an upsert table.
        flattens: Whether the table has flattened values.
    """
    found = {Part.KEY: columns.get(Part.KEY)}
    found[Part.VALUE] = unflattened(columns) if flattens else columns.get(Part.VALUE)
    return {part: kind for part, kind in found.items() if kind is not None}


INDEX_SCHEMA = Schema(
    [
        *(field for field in BRONZE_SCHEMA.fields if field.name in ("partition", "offset")),
        nullable_column("plan_sequence", "long"),
        nullable_column("topic_id", "string"),
        nullable_column("reason", "string"),
        nullable_column("part", "string"),
        nullable_column("detail", "string"),
        nullable_column("schema_id", "long"),
    ]
)
"""An entry of the quarantine as an index: a place in the bronze table, and why it is not in the
typed table."""

"""Columns of tables with flattened values: one column for each top-level field of the value."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidemark.spec.fields import FieldType, Struct

VALUE = "value"
"""The column of values that are not flattened. A table with flattened values never has it."""
TOMBSTONE = "tombstone"
"""Whether a row has no value. Only tables with flattened values have this column."""
OWN_COLUMNS = frozenset(
    {
        *("key", VALUE, "headers", "topic", "partition", "offset"),
        *("timestamp", "timestamp_out_of_range_ms", "timestamp_type"),
        *("topic_id", "plan_sequence", "ingested_at"),
        *("key_schema_id", "value_schema_id", TOMBSTONE, "deleted"),
    }
)
"""Names of Tidemark's columns in any typed table or upsert table."""
_PREFIX = f"{VALUE}_"
_RENAMED = re.compile(rf"(?:{_PREFIX})*(?:{'|'.join(sorted(OWN_COLUMNS))})", re.IGNORECASE)


def column_name(field: str) -> str:
    """Return the name of the column for a field.

    A field with the name of a column of Tidemark gets the prefix `value_`. A field that already has
    the prefix before such a name gets a second one, so that no two fields have the same column.
    """
    return f"{_PREFIX}{field}" if _RENAMED.fullmatch(field) else field


def field_name(column: str) -> str | None:
    """Return the name of the field that a column stores; None for a column of Tidemark."""
    if column.lower() in OWN_COLUMNS:
        return None
    return column[len(_PREFIX) :] if _RENAMED.fullmatch(column) else column


def flattened(value: Struct) -> Mapping[str, FieldType]:
    """Return the columns for the fields of a value."""
    return {column_name(name): kind for name, kind in value.fields}


def unflattened(columns: Mapping[str, FieldType]) -> Struct | None:
    """Return the value whose fields some columns store; None if they store no field."""
    fields = [(field_name(name), kind) for name, kind in columns.items()]
    found = tuple((name, kind) for name, kind in fields if name is not None)
    return Struct(found) if found else None

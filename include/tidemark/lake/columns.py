"""What data tables are made of: their columns, their properties, how their files are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from deltalake import ColumnProperties, Field, Schema, WriterProperties
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from tidemark.lake.retention import KEEP_LOG
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.fields import Decimal, FieldType, ListOf, MapOf, Struct
from tidemark.spec.upsert import Envelope

PROPERTIES: Mapping[str, str] = {
    **KEEP_LOG,
    # As Spark's: a reader replays the commits since the newest checkpoint.
    "delta.checkpointInterval": "10",
    # Only what a reader prunes by, and what tells a file's range (landed.py).
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp,plan_sequence",
}


_Type: TypeAlias = PrimitiveType | ArrayType | StructType | MapType


def _field(name: str, kind: str) -> Field:
    return Field(name, PrimitiveType(kind), nullable=True)


BRONZE = Schema(
    [
        _field("key", "binary"),
        _field("value", "binary"),
        Field(
            "headers",
            ArrayType(StructType([_field("key", "string"), _field("value", "binary")]), True),
            nullable=True,
        ),
        _field("topic", "string"),
        _field("partition", "integer"),
        _field("offset", "long"),
        _field("timestamp", "timestamp"),
        # Kafka's milliseconds if they lie outside the years 1 to 9999; `timestamp` is null then.
        _field("timestamp_out_of_range_ms", "long"),
        _field("timestamp_type", "integer"),
        _field("topic_id", "string"),
        _field("plan_sequence", "long"),
        _field("ingested_at", "timestamp"),
    ]
)
"""A bronze row: all that Kafka keeps of a record (S4), where it came from, and who landed it."""


def typed_schema(decode: DecodeSpec, columns: Mapping[Part, FieldType] | None = None) -> Schema:
    """A typed row: a bronze row with a decoded key and value.

    Args:
        decode: How records are decoded.
        columns: What the schemas make of the halves that are written with those of a registry;
            one that is not known has no column yet.
    """
    known = {part: spec.column for part, spec in decode.parts.items()} | dict(columns or {})
    decoded = [
        Field(part, _delta_type(kind), nullable=True)
        for part in Part
        if (kind := known.get(part)) is not None
    ]
    beside = [field for field in BRONZE.fields if field.name not in list(Part)]
    ids = [_field(part.schema_id, "long") for part in decode.framed]
    return Schema([*decoded, *beside, *ids])


def _delta_type(kind: FieldType) -> PrimitiveType | ArrayType | StructType | MapType:
    match kind:
        case Struct():
            return StructType(
                [Field(name, _delta_type(each), nullable=True) for name, each in kind.fields]
            )
        case ListOf():
            return ArrayType(_delta_type(kind.element), contains_null=True)
        case MapOf():
            return MapType(PrimitiveType("string"), _delta_type(kind.value), True)
        case _:
            return PrimitiveType(str(kind))


def field_type(kind: _Type) -> FieldType:
    """A column's type in Delta as that of a field; a word that only Delta has stays as it is."""
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


def latest_schema(columns: Mapping[Part, FieldType], envelope: Envelope) -> Schema:
    """A latest row: the key and the content of a record, and where its newest record is.

    Args:
        columns: The types of keys and values in the typed table.
        envelope: What the content is wrapped in.

    Raises:
        ValueError: The values are not in this envelope.
    """
    value = columns[Part.VALUE]
    if envelope is Envelope.DEBEZIUM:
        fields = dict(value.fields) if isinstance(value, Struct) else {}
        if not {"after", "op"} <= fields.keys():
            raise ValueError("values with the fields `after` and `op`")
        value = fields["after"]
    named = {field.name: field for field in BRONZE.fields}
    places = ("topic_id", "partition", "offset", "timestamp", "plan_sequence")
    return Schema(
        [
            Field("key", _delta_type(columns[Part.KEY]), nullable=True),
            Field("value", _delta_type(value), nullable=True),
            _field("deleted", "boolean"),
            *(named[name] for name in places),
        ]
    )


QUARANTINE = Schema(
    [
        *BRONZE.fields,
        _field("reason", "string"),
        _field("part", "string"),
        _field("detail", "string"),
        _field("schema_id", "long"),
        _field("closed_by", "long"),
        _field("closed_at", "timestamp"),
    ]
)
"""A quarantined row: the bronze row as it is, why it was not decoded, and what has closed it."""

_PAYLOAD = ColumnProperties(dictionary_enabled=False)
AS_LANDED = WriterProperties(
    compression="SNAPPY",
    column_properties={"key": _PAYLOAD, "value": _PAYLOAD},
)
"""How delta-rs writes rows anew: as Spark does, for what a record takes is measured by files."""

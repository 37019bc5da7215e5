"""What data tables are made of: their columns, their properties, how their files are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from deltalake import ColumnProperties, Field, Schema, WriterProperties
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from tidemark.core.decoding import DecodeSpec, FieldType, ListOf, Struct

PROPERTIES: Mapping[str, str] = {
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
        _field("timestamp_type", "integer"),
        _field("topic_id", "string"),
        _field("plan_sequence", "long"),
        _field("ingested_at", "timestamp"),
    ]
)
"""A bronze row: all that Kafka keeps of a record (S4), where it came from, and who landed it."""


def typed_schema(decode: DecodeSpec) -> Schema:
    """A typed row: a bronze row with a decoded key and value."""
    decoded = {"key": decode.key.column, "value": decode.value.column}
    return Schema(
        [
            Field(field.name, _delta_type(decoded[field.name]), nullable=True)
            if field.name in decoded
            else field
            for field in BRONZE.fields
        ]
    )


def _delta_type(kind: FieldType) -> PrimitiveType | ArrayType | StructType:
    match kind:
        case Struct():
            return StructType(
                [Field(name, _delta_type(each), nullable=True) for name, each in kind.fields]
            )
        case ListOf():
            return ArrayType(_delta_type(kind.element), contains_null=True)
        case _:
            return PrimitiveType(str(kind))


def conflicts(present: _Type, wanted: _Type, path: str) -> Iterator[str]:
    """Where two types of one column have different types for the same field.

    Fields that only one of them has are none: they are null in the rows of the other.
    """
    match present, wanted:
        case StructType(), StructType():
            there = {field.name.lower(): field for field in present.fields}
            for field in wanted.fields:
                if other := there.get(field.name.lower()):
                    place = f"{path}.{field.name}"
                    if other.name != field.name:
                        yield f"its field {path}.{other.name} is now called {field.name}"
                    yield from conflicts(other.type, field.type, place)
        case ArrayType(), ArrayType():
            yield from conflicts(present.element_type, wanted.element_type, f"{path}[]")
        case _:
            if str(present) != str(wanted):
                yield f"its field {path} is {_named(present)}, and {_named(wanted)} in the spec"


def additions(present: _Type, wanted: _Type, path: str) -> Iterator[str]:
    """Fields of a column that a table does not have yet, by their paths."""
    match present, wanted:
        case StructType(), StructType():
            there = {field.name: field for field in present.fields}
            for field in wanted.fields:
                place = f"{path}.{field.name}"
                if field.name in there:
                    yield from additions(there[field.name].type, field.type, place)
                else:
                    yield place
        case ArrayType(), ArrayType():
            yield from additions(present.element_type, wanted.element_type, f"{path}[]")


def _named(kind: _Type) -> str:
    return str(kind.type) if isinstance(kind, PrimitiveType) else str(kind.to_json())


QUARANTINE = Schema(
    [
        *BRONZE.fields,
        _field("reason", "string"),
        _field("part", "string"),
        _field("detail", "string"),
        _field("closed_by", "long"),
        _field("closed_at", "timestamp"),
    ]
)
"""A quarantined row: the bronze row as it is, why it was not decoded, and what has closed it."""

_PAYLOAD = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
AS_LANDED = WriterProperties(
    compression="SNAPPY",
    column_properties={"key": _PAYLOAD, "value": _PAYLOAD},
)
"""How delta-rs writes rows anew: as Spark does, for what a record takes is measured by files."""

"""Each field of a flattened value has its own column, and none has the name of another column."""

from __future__ import annotations

import pytest

from tidemark.delta.columns import BRONZE_SCHEMA
from tidemark.silver.typed.columns import decoded_parts, typed_schema
from tidemark.silver.upsert.table import upsert_schema
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Struct
from tidemark.spec.flattening import (
    OWN_COLUMNS,
    column_name,
    field_name,
    flattened,
    unflattened,
)
from tidemark.spec.upsert import UpsertSpec


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("price", "price"),
        ("timestamp", "value_timestamp"),
        ("Offset", "value_Offset"),
        ("value", "value_value"),
        ("value_timestamp", "value_value_timestamp"),
        ("VALUE_value_KEY", "value_VALUE_value_KEY"),
        ("value_schema_id", "value_value_schema_id"),
        ("value_price", "value_price"),
        ("schema_id", "schema_id"),
    ],
)
def test_fields_named_as_a_column_of_tidemark_get_a_prefix(field: str, column: str) -> None:
    assert column_name(field) == column
    assert field_name(column) == field


def test_columns_of_tidemark_are_no_fields_in_any_case() -> None:
    assert [field_name(name) for name in ("offset", "Offset", "tombstone", "deleted")] == [None] * 4


def test_a_value_is_the_same_after_flattening_and_back() -> None:
    fields = ("a", "key", "value_key", "value_value_key", "Deleted", "a.b")
    value = Struct(tuple((name, "long") for name in fields))
    columns = flattened(value)
    assert len({name.lower() for name in columns}) == len(fields)
    assert unflattened(columns) == value
    assert unflattened({"key": "binary", "offset": "long"}) is None


def test_every_column_of_every_table_is_reserved() -> None:
    """A new column needs an entry in the list, because it could be the name of a field."""
    decode = DecodeSpec(
        key=PayloadSpec(format=Format.AVRO),
        value=PayloadSpec(format=Format.AVRO),
        target="silver/events",
        flattens=True,
    )
    columns = decoded_parts({"key": "binary", "n": "long"}, flattens=True)
    schemas = [
        BRONZE_SCHEMA,
        typed_schema(decode, columns),
        upsert_schema(columns, UpsertSpec(target="silver/latest", flattens=True)),
    ]
    names = {field.name for schema in schemas for field in schema.fields}
    assert names - {"n"} == OWN_COLUMNS

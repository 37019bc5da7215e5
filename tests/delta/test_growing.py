"""Tests that new fields of a spec become columns, and that other changes are refused."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import TableAltered
from tidemark.silver.typed.columns import typed_schema
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Struct
from tidemark.spec.type_parsing import parse_type

_FIRST = {"price": "decimal(18,4)", "legs": [{"qty": "long"}]}


def typed(uri: Path, fields: dict[str, Any], *, has_unions: bool = False) -> DeltaDataTable:
    schema = parse_type(fields)
    assert isinstance(schema, Struct)
    value = PayloadSpec(format=Format.JSON, schema=schema)
    decode = DecodeSpec(key=PayloadSpec(), value=value, target="silver/events")
    return DeltaDataTable(str(uri), typed_schema(decode), grows=True, has_unions=has_unions)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    uri = tmp_path / "typed"
    typed(uri, _FIRST).prepare("events@typed")
    schema = pa.schema(DeltaTable(uri).schema().to_arrow())
    value = {"price": Decimal("1.5000"), "legs": [{"qty": 1}]}
    row = {"value": value, "offset": 1, "partition": 0}
    write_deltalake(uri, pa.Table.from_pylist([row], schema), mode="append")
    return uri


def values(uri: Path) -> list[Any]:
    return [row["value"] for row in pa.table(DeltaTable(uri).scan()).to_pylist()]


def test_new_fields_are_added_at_any_depth_and_listed_in_the_commit(table: Path) -> None:
    grown = {
        "name": "string",
        "price": "decimal(18,4)",
        "legs": [{"qty": "long", "on": "date"}],
    }
    before = DeltaTable(table).version()
    typed(table, grown).state("events@typed", ())
    assert DeltaTable(table).version() == before
    typed(table, grown).prepare("events@typed")
    typed(table, grown).prepare("events@typed")
    (commit,) = DeltaTable(table).history(DeltaTable(table).version() - before)
    assert json.loads(commit["userMetadata"]) == {"added": ["value.name", "value.legs[].on"]}
    (value,) = values(table)
    assert (value["name"], value["legs"]) == (None, [{"qty": 1, "on": None}])


def test_fields_removed_from_a_spec_keep_their_columns(table: Path) -> None:
    version = DeltaTable(table).version()
    typed(table, {"price": "decimal(18,4)"}).prepare("events@typed")
    assert DeltaTable(table).version() == version
    assert values(table)[0]["legs"] == [{"qty": 1}]


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        (
            {"price": "decimal(20,4)"},
            "value.price is decimal(18,4) in the table, not decimal(20,4)",
        ),
        ({"legs": [{"qty": "string"}]}, "value.legs[].qty is long in the table, not string"),
        ({"legs": "string"}, "value.legs is"),
        ({"Price": "decimal(18,4)"}, "value.price of the table is Price in the schema"),
    ],
)
def test_another_type_of_a_field_is_refused_with_the_difference(
    table: Path, fields: dict[str, Any], difference: str
) -> None:
    version = DeltaTable(table).version()
    other = typed(table, fields)
    with pytest.raises(TableAltered, match="Tidemark cannot add rows"):
        other.state("events@typed", ())
    with pytest.raises(TableAltered, match="Tidemark cannot add rows") as differs:
        other.prepare("events@typed")
    assert difference in str(differs.value)
    assert DeltaTable(table).version() == version


def test_a_union_that_became_a_record_is_refused(tmp_path: Path) -> None:
    """Without unions, fields that start with `member_` are normal fields."""
    union, record = (
        {"of": {"member_long": "long"}},
        {"of": {"member_long": "long", "city": "string"}},
    )
    uri = tmp_path / "unions"
    typed(uri, union, has_unions=True).prepare("events@typed")
    with pytest.raises(TableAltered, match="a union either in the table"):
        typed(uri, record, has_unions=True).prepare("events@typed")
    typed(uri, record).prepare("events@typed")
    assert "city" in str(DeltaTable(uri).schema())

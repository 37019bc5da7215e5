"""Typed tables with one column for each field of the values, decoded by real Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.framed_lake import FramedLake
from tidemark.delta.errors import TableAltered
from tidemark.delta.maintained_table import DeltaMaintainedTable
from tidemark.silver.typed.unnamed import read_unnamed_fields
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec, QuarantineReason
from tidemark.spec.fields import Struct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_SCHEMA = Struct((("n", "long"), ("timestamp", "string"), ("a.b", "string")))
FLAT = DecodeSpec(
    key=PayloadSpec(format=Format.STRING),
    value=PayloadSpec(format=Format.JSON, schema=_SCHEMA, keeps_rest=True),
    target="silver/events",
    rules=(("positive", "value.n IS NULL OR value.n > 0"),),
    flattens=True,
)


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> FramedLake:
    """Two landed plans with a value of each kind."""
    lake = FramedLake(root=tmp_path, decode=FLAT, spark=spark)
    values = [
        {"n": 1, "timestamp": "noon", "a.b": "dot"},
        None,
        {},
        {"n": -1},
        {"n": "text"},
        {"n": 2, "colour": "red", "N": 1.50, "deep": {"x": None}},
        {"colour": None},
    ]
    lake.land_values([None if each is None else json.dumps(each).encode() for each in values[:4]])
    lake.land_values([json.dumps(each).encode() for each in values[4:]])
    lake.run()
    return lake


def test_fields_of_values_are_columns_of_the_typed_table(lake: FramedLake) -> None:
    """A tombstone and an empty object differ in the column `tombstone`."""
    names = ("n", "value_timestamp", "a.b", "tombstone")
    rows = {offset: tuple(row[name] for name in names) for (_, offset), row in lake.rows().items()}
    assert rows == {
        0: (1, "noon", "dot", False),
        1: (None, None, None, True),
        2: (None, None, None, False),
        5: (2, None, None, False),
        6: (None, None, None, False),
    }
    assert lake.reasons() == {
        (0, 3): (QuarantineReason.RULE_BROKEN, None),
        (0, 4): (QuarantineReason.MALFORMED, None),
    }
    columns = [field.name for field in DeltaTable(lake.typed_uri).schema().fields]
    assert columns[4:10] == ["key", "n", "value_timestamp", "a.b", "_rest", "tombstone"]
    assert "value" not in columns
    lake.check()
    # Compaction rewrites all columns.
    DeltaMaintainedTable(str(lake.typed_uri)).compact()
    assert len(DeltaTable(lake.typed_uri).file_uris()) == 1
    lake.check()


def test_a_flattened_table_gets_columns_for_new_fields(lake: FramedLake) -> None:
    """Another spelling of a field is refused, as it would be the same column for Spark."""
    renamed = replace(FLAT.value, schema=Struct((("N", "long"),)))
    lake.land_values([b'{"n": 3, "colour": "blue"}'])
    lake.decode = replace(FLAT, value=renamed)
    with pytest.raises(TableAltered, match="its column n is N in the schema"):
        lake.run()
    grown = replace(FLAT.value, schema=Struct((*_SCHEMA.fields, ("colour", "string"))))
    lake.decode = replace(FLAT, value=grown)
    lake.run()
    rows = lake.rows()
    assert [(rows[0, n]["n"], rows[0, n]["colour"], rows[0, n]["_rest"]) for n in (0, 7)] == [
        (1, None, None),
        (3, "blue", None),
    ]


@pytest.mark.parametrize("flattens_first", [True, False])
def test_a_table_never_has_values_in_both_layouts(lake: FramedLake, flattens_first: bool) -> None:
    """Another target begins a table with the other layout."""
    first = replace(FLAT, flattens=flattens_first, target=f"silver/first_{flattens_first}")
    other = replace(first, flattens=not flattens_first)
    lake.decode = first
    lake.typed.prepare(lake.spec.name)
    lake.decode = other
    name = "tombstone" if flattens_first else "value"
    with pytest.raises(TableAltered, match=f"it has the column {name}"):
        lake.typed.prepare(lake.spec.name)


def test_unnamed_fields_are_kept_and_counted(lake: FramedLake) -> None:
    """Their column is null in records without such a field."""
    rests = {offset: row["_rest"] for (_, offset), row in lake.rows().items() if row["_rest"]}
    assert {offset: json.loads(text) for offset, text in rests.items()} == {
        5: {"colour": "red", "N": 1.5, "deep": {"x": None}},
        6: {"colour": None},
    }
    plans = {row["plan_sequence"] for row in lake.rows().values()}
    assert plans == {1, 2}
    found = read_unnamed_fields(str(lake.typed_uri), 1, 2)
    assert found is not None
    assert (found.records, found.names) == (2, {"colour": 2, "N": 1, "deep": 1})


def test_values_in_one_column_keep_unnamed_fields_in_a_field(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The records are the same as in a flattened table."""
    lake = FramedLake(root=tmp_path, decode=replace(FLAT, flattens=False), spark=spark)
    lake.land_values([b'{"n": 1, "x": "1"}', b'{"n": 2}'])
    lake.run()
    assert [row["value"]["_rest"] for row in lake.rows().values()] == ['{"x":"1"}', None]
    found = read_unnamed_fields(str(lake.typed_uri), 1, 1)
    assert found is not None
    assert (found.records, found.names) == (1, {"x": 1})
    rows = pa.table(DeltaTable(lake.typed_uri).scan())
    assert rows.schema.field("value").type.names == ["n", "timestamp", "a.b", "_rest"]

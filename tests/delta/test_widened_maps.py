"""Readers of a table whose maps of structs gained a field after some rows were written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.core.offsets import Span
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.delta_dataset import DeltaDataset
from tidemark.silver.typed.columns import typed_schema
from tidemark.spec.decode import DecodeSpec, Format, Part, PayloadSpec
from tidemark.spec.fields import FieldType, ListOf, MapOf, Struct

_FORMS: dict[str, tuple[Callable[[FieldType], FieldType], Callable[[Any], Any]]] = {
    "map": (MapOf, lambda leg: [("k", leg)]),
    "map_of_lists": (lambda kind: MapOf(ListOf(kind)), lambda leg: [("k", [leg])]),
    "list_of_maps": (lambda kind: ListOf(MapOf(kind)), lambda leg: [[("k", leg)]]),
    "map_of_maps": (lambda kind: MapOf(MapOf(kind)), lambda leg: [("a", [("b", leg)])]),
    "struct": (lambda kind: kind, lambda leg: leg),
}
TOPIC_ID = "id-1"
OLD = Struct((("qty", "long"),))
NEW = Struct((("qty", "long"), ("note", "string")))


def typed_table(uri: Path, field: FieldType, *, flattens: bool) -> DeltaDataTable:
    """Create a table whose values have a field `legs`, or add its missing fields."""
    decode = DecodeSpec(
        key=PayloadSpec(format=Format.STRING),
        value=PayloadSpec(format=Format.AVRO),
        target="silver/events",
        flattens=flattens,
    )
    columns: dict[Part, FieldType] = {Part.VALUE: Struct((("id", "long"), ("legs", field)))}
    table = DeltaDataTable(str(uri), typed_schema(decode, columns), grows=True)
    table.prepare("events@typed")
    return table


def append_rows(uri: Path, legs: Mapping[int, Any], *, flattens: bool) -> None:
    """Append a file with a row for each offset."""
    schema, rows = pa.schema(DeltaTable(uri).schema().to_arrow()), []
    for offset, each in legs.items():
        value = {"id": offset, "legs": each}
        row = {"topic_id": TOPIC_ID, "partition": 0, "offset": offset, "plan_sequence": offset}
        rows.append(row | (value if flattens else {"value": value}))
    write_deltalake(uri, pa.Table.from_pylist(rows, schema), mode="append")


@pytest.mark.parametrize("flattens", [False, True])
@pytest.mark.parametrize("form", _FORMS)
def test_rows_from_before_a_field_of_a_map_are_read(
    tmp_path: Path, form: str, *, flattens: bool
) -> None:
    """Spark reads null for the new field. delta-rs alone fails for maps."""
    uri, (kind, value) = tmp_path / "typed", _FORMS[form]
    typed_table(uri, kind(OLD), flattens=flattens)
    append_rows(uri, {1: value({"qty": 1}), 2: None}, flattens=flattens)
    table = typed_table(uri, kind(NEW), flattens=flattens)
    append_rows(uri, {3: value({"qty": 3, "note": "n"})}, flattens=flattens)
    expected = [value({"qty": 1, "note": None}), None, value({"qty": 3, "note": "n"})]

    def legs(rows: list[dict[str, Any]]) -> list[Any]:
        return [(row if flattens else row["value"])["legs"] for row in rows]

    found = table.values_at(TOPIC_ID, 0, Span(0, 9))
    assert ([row["offset"] for row in found], legs(found)) == ([1, 2, 3], expected)
    assert [row["offset"] for row in table.values_at(TOPIC_ID, 0, Span(2, 3))] == [2]
    records = [record for _, record in table.rows_of(TOPIC_ID, 0, Span(0, 9))]
    assert [(each.offset, each.value) for each in records] == [(1, None), (2, None), (3, None)]
    failures: list[Exception] = []
    with duckdb.connect() as connection:
        connection.register("events", DeltaDataset(DeltaTable(uri), failures.append))
        read = connection.sql('SELECT * FROM events ORDER BY "offset"').to_arrow_table()
        newest = "SELECT * FROM events WHERE plan_sequence > 2"
        assert connection.sql(newest).to_arrow_table().num_rows == 1
        assert connection.execute("SELECT count(*) FROM events").fetchall() == [(3,)]
    assert legs(read.to_pylist()) == expected
    assert failures == []

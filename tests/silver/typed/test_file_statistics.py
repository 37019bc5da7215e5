"""Tests of the file statistics of typed tables with structs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.typed_lake import DECODE, TypedLake
from tidemark.delta.compaction import Compaction
from tidemark.delta.live_files import live_files
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Struct

_STRUCT = Struct((("id", "long"), ("of", Struct((("x", "string"),)))))


@pytest.mark.parametrize(("columns", "found"), [("vp", set()), ("pv", {"p"})])
def test_delta_rs_still_omits_statistics_of_columns_after_a_struct_without_statistics(
    tmp_path: Path, columns: str, found: set[str]
) -> None:
    """If this fails, the order of the columns of a typed table no longer matters."""
    row = {"v": {"x": 1}, "p": 7}
    write_deltalake(
        tmp_path,
        pa.Table.from_pylist([{name: row[name] for name in columns}]),
        configuration={"delta.dataSkippingStatsColumns": "p"},
    )
    (file,) = live_files(DeltaTable(tmp_path))
    assert (file.records, set(file.bounds["min"])) == (1, found)


def decodes(**options: Any) -> DecodeSpec:
    value = PayloadSpec(format=Format.JSON, schema=_STRUCT)
    return replace(DECODE, value=value, **options)


@pytest.fixture(params=[False, True], ids=["value", "flattened"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> TypedLake:
    """Return a lake with two decoded plans of two records each. Their values are structs."""
    lake = TypedLake(tmp_path, decode=decodes(flattens=request.param))
    for _ in range(2):
        lake.land_values([b'{"id": 1, "of": {"x": "a"}}', None], key=None)
        lake.run()
    return lake


def bounds(lake: TypedLake) -> list[Mapping[str, tuple[Any, Any]]]:
    """Return the least and the greatest value of columns in each file."""
    return [
        {
            name: (file.bounds["min"].get(name), file.bounds["max"].get(name))
            for name in ("plan_sequence", "partition", "offset")
        }
        for file in live_files(DeltaTable(lake.typed_uri))
    ]


def test_the_rows_of_a_plan_are_removed_without_reading_files_of_other_plans(
    lake: TypedLake,
) -> None:
    (file,) = (each for each in DeltaTable(lake.typed_uri).file_uris() if "/plan-1-" in each)
    Path(file).write_bytes(b"not Parquet")
    lake.bronze.undo.undo(2, "test", "wrong")
    assert lake.run() == []
    assert [each["offset"] for each in bounds(lake)] == [(0, 1)]


def test_a_compaction_of_typed_files_keeps_their_statistics(lake: TypedLake) -> None:
    assert Compaction(str(lake.typed_uri)).run() == 2
    assert bounds(lake) == [{"plan_sequence": (1, 2), "partition": (0, 0), "offset": (0, 3)}]


def test_statistics_remain_after_a_struct_is_added(tmp_path: Path) -> None:
    """A schema of a registry adds columns to a table that was created without them."""
    lake = TypedLake(tmp_path, decode=decodes())
    early = replace(lake.decode, value=PayloadSpec(format=Format.AVRO), registry="sr")
    TypedLake(tmp_path, decode=early).tables.prepare({})
    lake.land_values([b'{"id": 1, "of": {"x": "a"}}'], key=None)
    lake.run()
    assert bounds(lake) == [{"plan_sequence": (1, 1), "partition": (0, 0), "offset": (0, 0)}]

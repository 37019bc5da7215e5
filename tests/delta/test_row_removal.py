"""Tests of removals and replacements in a table whose map of structs gained a field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from tests.delta.test_widened_maps import NEW, OLD
from tests.support.typed_lake import DECODE, TypedLake
from tidemark.core.errors import SetupError
from tidemark.core.offsets import Span, SpanSet
from tidemark.delta import row_removal
from tidemark.delta.checked_commits import commit_checked
from tidemark.delta.compaction import Compaction
from tidemark.delta.errors import (
    UnreadableFile,
)
from tidemark.delta.live_files import live_files
from tidemark.delta.row_removal import at_offsets
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import MapOf, Struct

pytestmark = pytest.mark.slow

SPAN = Span(0, 99)
OPS = ("ops", "a test")


def decodes(field: Struct) -> DecodeSpec:
    """Return a spec whose values have a map of structs."""
    schema = Struct((("id", "long"), ("legs", MapOf(field))))
    return replace(DECODE, value=PayloadSpec(format=Format.JSON, schema=schema))


def value(number: int, **fields: Any) -> bytes:
    return json.dumps({"id": number, "legs": {"k": {"qty": number, **fields}}}).encode()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> TypedLake:
    """Return a lake with four plans of two records. Each schema has one file with two plans."""
    lake = TypedLake(tmp_path_factory.mktemp("lake"), decode=decodes(OLD))
    for number in (0, 2, 4, 6):
        if number == 4:
            compact(lake)
            lake.decode = decodes(NEW)
        note = {"note": "n"} if number >= 4 else {}
        lake.land_values([value(number, **note), value(number + 1, **note)])
        lake.run()
    compact(lake)
    assert [file.records for file in live_files(DeltaTable(lake.typed_uri))] == [4, 4]
    return lake


@pytest.fixture
def lake(template: TypedLake, tmp_path: Path) -> TypedLake:
    return template.copied(tmp_path / "lake")


def compact(lake: TypedLake) -> None:
    Compaction(str(lake.typed_uri)).run()


def offsets(lake: TypedLake) -> list[int]:
    """Return the offsets of typed rows, after a check that each has its own value."""
    rows = lake.typed.values_at("id-1", 0, SPAN)
    for row in rows:
        number = row["offset"]
        note = "n" if number >= 4 else None
        assert row["value"] == {"id": number, "legs": [("k", {"qty": number, "note": note})]}
    return [row["offset"] for row in rows]


def test_delta_rs_still_cannot_rewrite_a_map_that_gained_a_field(lake: TypedLake) -> None:
    """If this fails, delta-rs can rewrite such a file, and `row_removal` is superfluous."""
    with pytest.raises(Exception, match="Cannot cast column 'value'"):
        DeltaTable(lake.typed_uri).delete("plan_sequence = 1")


def check(lake: TypedLake) -> None:
    """Decode, and check that the typed table has each bronze row once."""
    lake.run()
    assert offsets(lake) == sorted(row["offset"] for row in lake.bronze_rows())
    assert lake.decodes.next() is None


def test_rows_of_an_undone_plan_are_removed_and_decoded_again(lake: TypedLake) -> None:
    lake.bronze.undo.undo(1, *OPS)
    lake.run()
    assert offsets(lake) == [2, 3, 4, 5, 6, 7]
    lake.land_values([value(8, note="n")])
    check(lake)


def test_rows_with_an_older_form_of_a_map_are_replaced(lake: TypedLake) -> None:
    """The commit adds the files of the decoder, and removes no row at another offset."""
    lake.bronze.land_again((0, 1, 6))
    lake.run()
    found = {row["offset"]: row["plan_sequence"] for row in lake.typed.values_at("id-1", 0, SPAN)}
    assert found == {0: 1, **dict.fromkeys(range(1, 6), 5), 6: 4, 7: 4}
    written = [file.path for file in live_files(DeltaTable(lake.typed_uri))]
    assert sum("/" in path for path in written) == 1
    check(lake)


def test_a_table_with_an_older_form_of_a_map_is_decoded_from_scratch(lake: TypedLake) -> None:
    assert lake.decodes.from_scratch("ada", "again").rows == 8
    assert offsets(lake) == []
    check(lake)


def append_again(lake: TypedLake, offset: int = 0) -> None:
    """Append a copy of the row at an offset, in a separate file."""
    rows = lake.typed.values_at("id-1", 0, Span(offset, offset + 1))
    schema = pa.schema(DeltaTable(lake.typed_uri).schema().to_arrow())
    write_deltalake(lake.typed_uri, pa.Table.from_pylist(rows, schema), mode="append")


def meanwhile(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch, rival: Callable[[TypedLake], object]
) -> None:
    """Let another process commit once, between the rewrite of rows and the check of the commit."""

    def late(*arguments: Any) -> int:
        monkeypatch.undo()
        rival(lake)
        return commit_checked(*arguments)

    monkeypatch.setattr(row_removal, "commit_checked", late)


def test_i1_a_replacement_over_a_compaction_keeps_each_row_once(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compaction has replaced the files. The decode begins again."""
    lake.bronze.land_again((0, 1, 6))
    meanwhile(lake, monkeypatch, compact)
    check(lake)


def test_i1_a_replacement_begins_again_after_another_change_of_rows(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookmark is unknown then, so the decode compares the rows."""
    lake.bronze.land_again((0, 1, 6))
    meanwhile(lake, monkeypatch, partial(append_again, offset=1))
    check(lake)


def test_a_replacement_names_the_damaged_file_that_it_has_to_rewrite(lake: TypedLake) -> None:
    lake.bronze.land_again((0, 1, 6))
    (file, *_) = live_files(DeltaTable(lake.typed_uri))
    (lake.typed_uri / file.path).write_bytes(b"not Parquet")
    with pytest.raises(UnreadableFile, match=file.path):
        lake.run()


def test_i7_no_row_is_removed_if_a_file_cannot_be_replaced(
    lake: TypedLake,
) -> None:
    """A commit of delta-rs cannot name such a path, nor a file with a deletion vector."""
    first, *_ = live_files(DeltaTable(lake.typed_uri))
    odd = "file+1.parquet"
    shutil.copy(lake.typed_uri / first.path, lake.typed_uri / odd)
    table = DeltaTable(lake.typed_uri)
    added = AddAction(odd, first.size, {}, 0, data_change=True, stats=json.dumps({"numRecords": 4}))
    table.create_write_transaction([added], "append", table.schema())
    lake.bronze.undo.undo(1, *OPS)
    version = DeltaTable(lake.typed_uri).version()
    with pytest.raises(SetupError, match=r"file\+1.*OPTIMIZE delta"):
        lake.run()
    assert DeltaTable(lake.typed_uri).version() == version


def test_the_rows_at_offsets_are_those_of_one_incarnation() -> None:
    rows = [
        {"topic_id": "a", "partition": 0, "offset": 1},
        {"topic_id": "b", "partition": 0, "offset": 1},
        {"topic_id": "a", "partition": 1, "offset": 1},
        {"topic_id": "a", "partition": 0, "offset": 3},
        {"topic_id": None, "partition": None, "offset": None},
        {"topic_id": "a", "partition": 0, "offset": 5},
    ]
    spans = {0: SpanSet((Span(0, 3), Span(5, 6))), 2: SpanSet((Span(1, 2),))}
    batch = pa.RecordBatch.from_pylist(rows)
    expected = [True, False, False, False, False, True]
    assert at_offsets(batch, "a", spans).to_pylist() == expected
    assert at_offsets(batch.select(["offset"]), "a", spans).true_count == 0

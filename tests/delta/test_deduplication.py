"""Tests that duplicate rows of a data table are detected and removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from tests.support.commands import Command
from tests.support.file_lake import WEEK, FileLake, double, home_lake
from tests.support.typed_lake import TypedLake
from tidemark.bronze.ingest.errors import DuplicateRows
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.delta import duplicates
from tidemark.delta.compaction import Compaction
from tidemark.delta.deduplication import DeduplicationResult, deduplicate
from tidemark.delta.errors import (
    DuplicatesDiffer,
    EngineFailed,
    ForeignTable,
    TableConflict,
    UnreadableFile,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return a pipeline with three plans of three records each."""
    return home_lake(tmp_path)


def rows_of(lake: FileLake) -> list[dict[str, Any]]:
    rows = pa.table(DeltaTable(lake.uri).scan()).to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def deduplicated(lake: FileLake, *, dry_run: bool = False) -> DeduplicationResult:
    return deduplicate(str(lake.uri), "events", dry_run=dry_run)


def test_copies_in_an_append_only_table_are_removed(lake: FileLake) -> None:
    """The property permits commits that change no data, such as a compaction."""
    before = rows_of(lake)
    double(lake.uri)
    DeltaTable(lake.uri).alter.set_table_properties({"delta.appendOnly": "true"})
    assert deduplicated(lake).rows == 9
    assert rows_of(lake) == before


# -- detection -----------------------------------------------------------------------------------


def test_the_status_reports_doubled_rows(lake: FileLake) -> None:
    assert lake.status().problem is None
    double(lake.uri)
    problem = lake.status().problem
    assert isinstance(problem, DuplicateRows)
    assert (problem.rows, problem.landed) == (18, 9)
    assert "DuplicateRows" in lake.status().state


def test_a_report_over_doubled_rows_is_refused(lake: FileLake, offline: Command) -> None:
    """The report would certify the period as complete."""
    period = ("--since", "2000-01-01", "--until", "2100-01-01")
    assert offline("report", "events", *period, "--json").code == 0
    double(lake.uri)
    refused = offline("report", "events", *period, "--json")
    assert refused.code == 65
    assert "DuplicateRows" in refused.out + refused.err


def test_a_doubled_bronze_table_is_not_decoded(tmp_path: Path) -> None:
    """The typed table would have each row twice."""
    lake = TypedLake(root=tmp_path)
    lake.bronze.run(3)
    lake.run()
    lake.bronze.run(3)
    version = DeltaTable(lake.typed_uri).version()
    double(lake.bronze.uri)
    with pytest.raises(DuplicateRows):
        lake.run()
    assert DeltaTable(lake.typed_uri).version() == version
    assert deduplicate(str(lake.bronze.uri), "events").rows == 6
    lake.run()
    lake.check()


def test_rows_of_unrecorded_or_corrected_plans_are_not_doubled_rows(lake: FileLake) -> None:
    plan = lake.plan(4)
    lake.land(plan)
    read_checked_ledger(lake.control, "events", lake.table, rows=True)
    lake.ingest.execute(plan.sequence)
    lake.land_again((0, 0, 5))
    read_checked_ledger(lake.control, "events", lake.table, rows=True)
    lake.undo.undo(2, "ops", "a test")
    read_checked_ledger(lake.control, "events", lake.table, rows=True)
    lake.abandon.abandon(lake.plan(2).sequence, "ops", "a test")
    read_checked_ledger(lake.control, "events", lake.table, rows=True)
    with pytest.raises(DuplicateRows):
        double_and_check(lake)


def double_and_check(lake: FileLake) -> None:
    lake.run(2)
    double(lake.uri)
    read_checked_ledger(lake.control, "events", lake.table, rows=True)


# -- the repair ----------------------------------------------------------------------------------


def test_deduplication_removes_copies_and_keeps_every_row(lake: FileLake) -> None:
    rows = rows_of(lake)
    double(lake.uri)
    lake.run(2)
    version = DeltaTable(lake.uri).version()
    assert deduplicated(lake, dry_run=True).rows == 9
    assert DeltaTable(lake.uri).version() == version
    assert deduplicated(lake).rows == 9
    assert rows_of(lake)[:9] == rows
    assert lake.verified() == [(11, 11)]
    assert lake.status().problem is None
    assert deduplicated(lake).rows == 0
    assert lake.maintenance().maintain(WEEK).after is not None
    assert lake.undo.undo(2, "ops", "a test").rows == 3
    lake.run(1)
    assert lake.verified() == [(12, 12)]


def test_rows_doubled_several_times_are_removed_from_compacted_files(lake: FileLake) -> None:
    one, other = DeltaTable(lake.uri), DeltaTable(lake.uri)
    double(lake.uri)
    one.optimize.compact()
    other.optimize.compact()
    lake.run(2)
    Compaction(str(lake.uri)).run()
    assert DeltaTable(lake.uri).count() == 9 * 4 + 2
    assert deduplicated(lake).rows == 27
    assert lake.verified() == [(11, 11)]


def test_deduplication_keeps_rows_with_a_null_in_their_key(lake: FileLake) -> None:
    """They may be different rows."""
    double(lake.uri)
    insert(lake, [{"value": b"one"}, {"value": b"two"}, {"value": b"two"}, {"topic_id": "id-1"}])
    assert deduplicated(lake).rows == 9
    assert DeltaTable(lake.uri).count() == 13


@pytest.mark.parametrize("dry_run", [True, False])
def test_rows_with_one_key_that_differ_are_refused(lake: FileLake, dry_run: bool) -> None:
    double(lake.uri)
    insert(lake, [{**rows_of(lake)[8], "value": b"other", "headers": []}])
    version = DeltaTable(lake.uri).version()
    with pytest.raises(DuplicatesDiffer) as refused:
        deduplicated(lake, dry_run=dry_run)
    row = rows_of(lake)[8]
    location = (refused.value.partition, refused.value.offset, refused.value.sequence)
    assert location == (row["partition"], row["offset"], row["plan_sequence"])
    assert set(refused.value.columns) >= {"value"}
    assert DeltaTable(lake.uri).version() == version
    lake.undo.undo(location[2], "ops", "a test")
    deduplicated(lake)
    lake.run(1)
    assert lake.verified() == [(10, 10)]


def test_copies_are_found_in_passes(lake: FileLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MAX_KEYS_IN_MEMORY", 4)
    monkeypatch.setattr(duplicates, "_ROWS_AT_ONCE", 1)
    double(lake.uri)
    Compaction(str(lake.uri)).run()
    assert deduplicated(lake).rows == 9
    assert lake.verified() == [(9, 9)]


def test_copies_are_equal_in_nested_columns_and_in_nan() -> None:
    """In Arrow, NaN differs from NaN."""
    kind = pa.struct([("number", pa.float64()), ("names", pa.map_(pa.string(), pa.int32()))])
    values = [{"number": float("nan"), "names": [("a", 1)]}, None, {"number": 1.0, "names": []}]
    rows = pa.table({"nested": pa.array(values, kind)})
    assert duplicates._first_difference(rows, rows) is None
    assert duplicates._first_difference(rows, rows.take([0, 1, 1])) == 2


def test_files_that_cannot_be_read_are_counted(lake: FileLake, offline: Command) -> None:
    """Such files have an unusual path or a deletion vector."""
    double(lake.uri)
    file = next(iter(DeltaTable(lake.uri).file_uris()))
    shutil.copy(file, lake.uri / "an odd path.parquet")
    table = DeltaTable(lake.uri)
    action = AddAction("an odd path.parquet", Path(file).stat().st_size, {}, 0, True, "{}")
    table.create_write_transaction([action], "append", table.schema())
    assert deduplicated(lake, dry_run=True).unread_files == 1
    assert "1 file not read" in offline("deduplicate", "events", "--apply").out


def insert(lake: FileLake, rows: list[dict[str, Any]]) -> None:
    schema = pa.schema(DeltaTable(lake.uri).schema().to_arrow())
    write_deltalake(lake.uri, pa.Table.from_pylist(rows, schema), mode="append")


def test_a_deduplication_searches_again_once_its_files_have_left_the_table(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The undone rows must not return."""
    double(lake.uri)
    before_each_commit(monkeypatch, [lambda: lake.undo.undo(2, "ops", "a test")])
    assert deduplicated(lake).rows == 6
    lake.run(1)
    assert lake.verified() == [(10, 10)]


def test_concurrent_deduplications_remove_each_copy_once(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    double(lake.uri)
    before_each_commit(monkeypatch, [lambda: deduplicated(lake)])
    assert deduplicated(lake).rows == 0
    assert lake.verified() == [(9, 9)]


def test_a_deduplication_raises_a_conflict_after_five_tries(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        lake.run(3)
    double(lake.uri)
    undo = partial(lake.undo.undo, requested_by="ops", reason="a test")
    before_each_commit(monkeypatch, [partial(undo, number) for number in range(1, 6)])
    with pytest.raises(TableConflict) as refused:
        deduplicated(lake)
    assert "maintenance" not in refused.value.rendered("fix")
    assert deduplicated(lake).rows == 3


def test_a_repetition_after_a_lost_answer_finds_nothing(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    double(lake.uri)
    commit = Compaction.commit

    def commit_and_fail(self: Compaction, *arguments: Any) -> int:
        commit(self, *arguments)
        raise OSError("the connection was closed")

    with monkeypatch.context() as patched:
        patched.setattr(Compaction, "commit", commit_and_fail)
        with pytest.raises(EngineFailed):
            deduplicated(lake)
    assert deduplicated(lake).rows == 0
    assert lake.verified() == [(9, 9)]


def before_each_commit(
    monkeypatch: pytest.MonkeyPatch, commits: list[Callable[[], object]]
) -> None:
    """Call the next of `commits` before each commit of a rewrite."""
    commit = Compaction.commit

    def late(self: Compaction, *arguments: Any) -> int:
        if commits:
            with monkeypatch.context() as patched:
                patched.setattr(Compaction, "commit", commit)
                commits.pop(0)()
        return commit(self, *arguments)

    monkeypatch.setattr(Compaction, "commit", late)


def test_deduplicating_the_table_of_another_pipeline_is_refused(lake: FileLake) -> None:
    with pytest.raises(ForeignTable):
        deduplicate(str(lake.uri), "other")
    assert deduplicate(str(lake.root / "none"), "none").rows == 0


def test_the_deduplicate_command_counts_and_removes(lake: FileLake, offline: Command) -> None:
    double(lake.uri)
    assert offline("deduplicate", "events").code == 2
    shown = offline("deduplicate", "events", "--dry-run", "--json")
    assert shown.json == {"outcome": "draft", "copies": 9, "unread_files": 0}
    assert "9 duplicate rows removed" in offline("deduplicate", "events", "--apply").out
    assert lake.verified() == [(9, 9)]


# -- unreadable files ----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"PAR1")])
def test_deduplicating_an_unreadable_file_raises_a_final_error(
    lake: FileLake, damage: Callable[[Path], object]
) -> None:
    path = DeltaTable(lake.uri).file_uris()[0]
    damage(Path(path))
    with pytest.raises(UnreadableFile) as caught:
        deduplicated(lake)
    assert Path(path).name in caught.value.file

"""Tests of commits that store a note, and that come right after the version that was read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, write_deltalake

from tests.delta.test_widened_maps import NEW, OLD
from tests.support.file_lake import remove_old_commits
from tidemark.core.datafile import DataFile
from tidemark.core.following import Batch, BatchOffsets, Totals
from tidemark.core.offsets import Span, SpanSet
from tidemark.delta import noted_commits
from tidemark.delta.errors import TableAltered, TableConflict
from tidemark.delta.noted_commits import CommitRef, NotedTable, NotedVersion, RowChange

SCHEMA = pa.schema(
    [
        ("plan_sequence", pa.int64()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


def rows_of(plan: int, *offsets: int, topic_id: str = "id-1") -> list[dict[str, Any]]:
    return [
        {"plan_sequence": plan, "topic_id": topic_id, "partition": 0, "offset": offset}
        for offset in offsets
    ]


def batch(
    plan: int, *spans: tuple[int, int], topic_id: str = "id-1"
) -> dict[Batch, Mapping[int, SpanSet]]:
    return {Batch(plan, topic_id): {0: SpanSet.of([Span(*span) for span in spans])}}


def batches(*rows: dict[str, Any]) -> list[pa.RecordBatch]:
    return pa.Table.from_pylist(list(rows), SCHEMA).to_batches()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table with offsets 0 to 3 of plan 1, and the same offsets of another topic."""
    uri = str(tmp_path / "table")
    rows = [*rows_of(1, 0, 1, 2, 3), *rows_of(1, 0, 1, 2, 3, topic_id="id-2")]
    write_deltalake(uri, pa.Table.from_pylist(rows, SCHEMA))
    return uri


def opened(uri: str) -> NotedVersion:
    version = NotedTable(uri, "note").open()
    assert version is not None
    return version


def offsets_in(uri: str, topic_id: str = "id-1") -> list[tuple[int, int]]:
    """Return plan and offset of each row of a topic."""
    rows = pa.table(DeltaTable(uri).scan()).to_pylist()
    own = (row for row in rows if row["topic_id"] == topic_id)
    return sorted((row["plan_sequence"], row["offset"]) for row in own)


def file_of(uri: str, *rows: dict[str, Any]) -> DataFile:
    """Return a new file with some rows."""
    name = "plan-2-new.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), Path(uri, name))
    numbers = [row["offset"] for row in rows]
    return DataFile(
        path=name,
        size=Path(uri, name).stat().st_size,
        modified_ms=0,
        partition=0,
        records=len(rows),
        first=min(numbers),
        last=max(numbers),
        earliest_ms=None,
        latest_ms=None,
    )


# -- commits -------------------------------------------------------------------------------------


def test_a_commit_removes_and_adds_rows_and_stores_a_note(uri: str) -> None:
    """Rows of another plan or topic at the same offsets stay."""
    change = RowChange(
        removed=batch(1, (1, 3)) | batch(7, (0, 9)),
        added=batch(2, (1, 2)),
        rows=batches(*rows_of(2, 1)),
    )
    opened(uri).commit({"n": 1}, change)
    assert offsets_in(uri) == [(1, 0), (1, 3), (2, 1)]
    assert offsets_in(uri, "id-2") == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert DeltaTable(uri).version() == 1
    assert opened(uri).newest_note() == {"n": 1}


def test_a_commit_refers_to_no_file_that_maintenance_has_removed(uri: str) -> None:
    file = file_of(uri, *rows_of(2, 4))
    Path(uri, file.path).unlink()
    with pytest.raises(TableConflict, match=r"plan-2-new.parquet is no longer in the folder"):
        opened(uri).commit({}, RowChange(added=batch(2, (4, 5)), files=[file]))
    assert DeltaTable(uri).version() == 0


@pytest.mark.parametrize("removed", [{}, batch(1, (0, 4))])
def test_a_commit_adds_files_with_and_without_removed_rows(uri: str, removed: BatchOffsets) -> None:
    change = RowChange(
        removed=removed, added=batch(2, (4, 6)), files=[file_of(uri, *rows_of(2, 4, 5))]
    )
    opened(uri).commit("a", change)
    kept = [] if removed else [(1, offset) for offset in range(4)]
    assert offsets_in(uri) == [*kept, (2, 4), (2, 5)]


def test_a_commit_without_rows_stores_a_note(uri: str) -> None:
    opened(uri).commit("a", RowChange())
    assert (opened(uri).newest_note(), DeltaTable(uri).version()) == ("a", 1)


def test_a_table_that_does_not_exist_has_no_version(tmp_path: Path) -> None:
    assert NotedTable(str(tmp_path / "none"), "note").open() is None


def test_rows_of_a_map_that_gained_a_field_are_replaced(tmp_path: Path) -> None:
    """delta-rs cannot rewrite such a table."""
    from tests.delta.test_row_removal import decodes, value
    from tests.support.typed_lake import TypedLake

    lake = TypedLake(tmp_path, decode=decodes(OLD))
    lake.land_values([value(0), value(1)])
    lake.run()
    lake.decode = decodes(NEW)
    lake.land_values([value(2, note="n"), value(3, note="n")])
    lake.run()
    uri = str(lake.typed_uri)
    opened(uri).commit("a", RowChange(removed=batch(1, (1, 2)) | batch(2, (2, 3))))
    assert opened(uri).offsets() == batch(1, (0, 1)) | batch(2, (3, 4))
    assert DeltaTable(uri).count() == 2
    assert opened(uri).newest_note() == "a"


def test_no_row_is_removed_from_a_table_for_appends_only(uri: str) -> None:
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TableAltered):
        opened(uri).commit("a", RowChange(removed=batch(1, (0, 2))))


# -- other commits -------------------------------------------------------------------------------


def append(uri: str) -> None:
    write_deltalake(uri, pa.Table.from_pylist(rows_of(5, 50), SCHEMA), mode="append")


def delete(uri: str) -> None:
    DeltaTable(uri).delete('"offset" = 3')


def restore(uri: str) -> None:
    DeltaTable(uri).restore(0)


def note(uri: str) -> None:
    opened(uri).commit("other", RowChange())


def compact(uri: str) -> None:
    DeltaTable(uri).optimize.compact()


def change_property(uri: str) -> None:
    DeltaTable(uri).alter.set_table_properties({"a.b": "c"}, raise_if_not_exists=False)


def copy_and_grow(uri: str) -> None:
    """Replace the table by an older copy, which then has another commit of the same version."""
    table = DeltaTable(uri)
    Path(uri, "_delta_log", f"{table.version():020}.json").unlink()
    append(uri)


CHANGES = (
    RowChange(),
    RowChange(removed=batch(1, (0, 1))),
    RowChange(removed=batch(1, (0, 1)), added=batch(2, (0, 1)), rows=batches(*rows_of(2, 0))),
)


@pytest.mark.parametrize("change", CHANGES, ids=["note", "removal", "replacement"])
@pytest.mark.parametrize("other", [append, delete, restore, note, copy_and_grow])
def test_a_commit_after_another_change_of_rows_is_refused(
    uri: str, other: Callable[[str], None], change: RowChange
) -> None:
    append(uri)
    version = opened(uri)
    other(uri)
    before = offsets_in(uri), DeltaTable(uri).version()
    with pytest.raises(TableConflict, match="Another process changed"):
        version.commit("late", change)
    assert (offsets_in(uri), DeltaTable(uri).version()) == before


@pytest.mark.parametrize("change", CHANGES, ids=["note", "removal", "replacement"])
@pytest.mark.parametrize("other", [compact, change_property])
def test_a_commit_follows_maintenance(
    uri: str, other: Callable[[str], None], change: RowChange
) -> None:
    append(uri)
    version = opened(uri)
    other(uri)
    assert DeltaTable(uri).version() == 2
    version.commit("a", change)
    assert (opened(uri).newest_note(), DeltaTable(uri).version()) == ("a", 3)


@pytest.mark.parametrize("change", CHANGES, ids=["note", "removal", "replacement"])
def test_a_commit_between_the_check_and_the_commit_is_refused(
    uri: str, change: RowChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = opened(uri)
    check = NotedVersion._check_follows

    def late(self: NotedVersion, newest: DeltaTable) -> None:
        check(self, newest)
        append(uri)

    monkeypatch.setattr(NotedVersion, "_check_follows", late)
    with pytest.raises(TableConflict):
        version.commit("late", change)
    assert DeltaTable(uri).version() == 1


# -- notes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "is_known", "is_known_over_deletions"),
    [
        ((), True, True),
        ((compact, change_property), True, True),
        ((delete,), False, True),
        ((append,), False, False),
        ((restore,), False, False),
        ((append, compact), False, False),
    ],
)
def test_a_note_is_known_until_rows_change_in_another_way(
    uri: str,
    others: Collection[Callable[[str], None]],
    is_known: bool,
    is_known_over_deletions: bool,
) -> None:
    append(uri)
    opened(uri).commit("a", RowChange())
    for other in others:
        other(uri)
    version = opened(uri)
    assert version.newest_note() == ("a" if is_known else None)
    assert version.newest_note(over_deletions=True) == ("a" if is_known_over_deletions else None)


def test_a_note_is_found_in_a_long_log_with_the_time_of_its_commit(uri: str) -> None:
    assert opened(uri).noted_at() is None
    before = datetime.now(UTC)
    opened(uri).commit("a", RowChange())
    noted_at = opened(uri).noted_at()
    assert noted_at is not None
    assert timedelta(milliseconds=-1) < noted_at - before < timedelta(minutes=1)
    for _ in range(60):
        change_property(uri)
    assert (opened(uri).newest_note(), opened(uri).noted_at()) == ("a", noted_at)


def test_a_note_is_unknown_without_its_commit(uri: str) -> None:
    """Other programs write metadata, too."""
    opened(uri).commit("a", RowChange())
    properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(["note"])})
    DeltaTable(uri).optimize.compact(commit_properties=properties)
    change_property(uri)
    assert opened(uri).newest_note() == "a"
    remove_old_commits(uri)
    assert opened(uri).newest_note() is None


def test_notes_since_a_known_commit_are_returned_oldest_first(uri: str, tmp_path: Path) -> None:
    opened(uri).commit("a", RowChange())
    first = opened(uri).ref
    shutil.copytree(uri, tmp_path / "copy")
    change_property(uri)
    opened(uri).commit("b", RowChange())
    opened(uri).commit("c", RowChange())
    version = opened(uri)
    assert version.notes_since(first) == ["b", "c"]
    assert version.notes_since(version.ref) == []
    assert version.notes_since(CommitRef(first.version, "other")) is None
    assert version.notes_since(CommitRef(first.version, None)) is None
    assert version.notes_since(CommitRef(9, first.digest)) is None
    assert opened(str(tmp_path / "copy")).notes_since(version.ref) is None
    remove_old_commits(uri)
    assert opened(uri).notes_since(first) is None
    # Maintenance keeps the newest commit.
    assert opened(uri).notes_since(version.ref) == []


def test_notes_since_a_commit_are_unknown_after_other_changes_of_rows(uri: str) -> None:
    """If the caller has to know all changes."""
    first = opened(uri).ref
    opened(uri).commit("a", RowChange())
    DeltaTable(uri).optimize.compact()
    assert opened(uri).notes_since(first, over_changes=False) == ["a"]
    append(uri)
    assert opened(uri).notes_since(first, over_changes=False) is None
    assert opened(uri).notes_since(first) == ["a"]


def test_notes_after_a_version_are_returned_newest_first_with_their_times(uri: str) -> None:
    """As far back as the log reaches."""
    before = datetime.now(UTC)
    opened(uri).commit("a", RowChange())
    append(uri)
    opened(uri).commit("b", RowChange())
    (newest, second), (oldest, first) = opened(uri).notes_after(-1)
    assert (first, second) == ("a", "b")
    assert newest is not None
    assert oldest is not None
    assert before - timedelta(milliseconds=1) <= oldest <= newest
    assert [note for _, note in opened(uri).notes_after(1)] == ["b"]
    assert opened(uri).notes_after(9) == []
    remove_old_commits(uri)
    assert [note for _, note in opened(uri).notes_after(-1)] == ["b"]


def test_topic_ids_are_ordered_by_the_newest_plan_of_each(uri: str) -> None:
    append(uri)
    assert opened(uri).topic_ids() == ["id-2", "id-1"]
    DeltaTable(uri).delete("topic_id = 'id-2'")
    assert opened(uri).topic_ids() == ["id-1"]
    DeltaTable(uri).delete()
    assert opened(uri).topic_ids() == []


@pytest.mark.parametrize("conditions", [1, 1_000])
def test_offsets_of_rows_are_returned_by_plan_and_topic(
    uri: str, monkeypatch: pytest.MonkeyPatch, conditions: int
) -> None:
    monkeypatch.setattr(noted_commits, "_MAX_CONDITIONS", conditions)
    append(uri)
    version = opened(uri)
    everything = batch(1, (0, 4)) | batch(1, (0, 4), topic_id="id-2") | batch(5, (50, 51))
    assert version.offsets() == everything
    within = batch(1, (1, 3), topic_id="id-2") | batch(5, (0, 9)) | batch(9, (0, 9))
    assert version.offsets(within) == batch(1, (1, 3), topic_id="id-2")
    assert version.offsets({}) == {}


def test_totals_of_rows_are_returned_by_plan_and_partition(uri: str) -> None:
    append(uri)
    totals = opened(uri).totals()
    assert totals[Batch(5, "id-1")] == {0: Totals(rows=1, first=50, last=50, sum=50, squares=2500)}
    assert totals[Batch(1, "id-2")] == {0: Totals(rows=4, first=0, last=3, sum=6, squares=14)}
    DeltaTable(uri).delete()
    assert opened(uri).totals() == {}


def test_a_cleared_table_has_new_columns_and_no_rows(uri: str) -> None:
    """The commit has its note, and who requested it."""
    version = opened(uri)
    columns = Schema([*DeltaTable(uri).schema().fields, Field("new", "string", nullable=True)])
    version.clear("a", columns, {"requested_by": "ops"})
    table = DeltaTable(uri)
    assert (opened(uri).newest_note(), opened(uri).row_count()) == ("a", 0)
    assert [field.name for field in table.schema().fields][-1] == "new"
    metadata = json.loads(table.history(1)[0]["userMetadata"])
    assert metadata == {"note": "a", "requested_by": "ops"}
    with pytest.raises(TableConflict):
        version.clear("b", columns, {})

"""Tests of the commits that the log of a table contains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from tests.support.file_lake import remove_old_commits
from tests.support.typed_lake import TypedLake
from tidemark.delta.commit_log import commits_with_metadata, history, may_have_changed_rows


def append(uri: str, name: str) -> None:
    write_deltalake(
        uri,
        pa.table({"value": [1]}),
        mode="append",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": name}),
    )


@pytest.mark.parametrize("limit", [None, 1, 2, 5])
def test_commits_keep_their_versions_after_a_later_commit(
    tmp_path: Path, limit: int | None
) -> None:
    """delta-rs gives each commit the version of an earlier one (`DeltaTable.history`)."""
    uri = str(tmp_path / "a table")
    for name in ("0", "1"):
        append(uri, name)
    table = DeltaTable(uri)
    append(uri, "2")
    append(uri, "3")
    expected = [(1, "1"), (0, "0")][:limit]
    assert [(each["version"], each["userMetadata"]) for each in history(table, limit)] == expected


def test_history_of_delta_rs_counts_from_the_opened_version(tmp_path: Path) -> None:
    """If this test fails, delta-rs has been fixed."""
    uri = str(tmp_path)
    append(uri, "0")
    table = DeltaTable(uri)
    append(uri, "1")
    assert [(each["version"], each["userMetadata"]) for each in table.history()] == [
        (0, "1"),
        (-1, "0"),
    ]


def test_commits_equal_the_history_of_delta_rs(tmp_path: Path) -> None:
    uri = str(tmp_path)
    for name in ("0", "1", "2"):
        append(uri, name)
    table = DeltaTable(uri)
    table.delete("value = 1")
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    assert history(table) == table.history()


def set_property(table: DeltaTable) -> None:
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})


def add_column(table: DeltaTable) -> None:
    table.alter.add_columns([Field("more", PrimitiveType("long"))])


def commit_nothing(table: DeltaTable) -> None:
    table.create_write_transaction([], "append", table.schema())


def lose_a_commit(table: DeltaTable) -> None:
    commit_nothing(table)
    commit_nothing(table)
    remove_old_commits(Path(table.table_uri.removeprefix("file://")))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda table: append(table.table_uri, "1"), True),
        (lambda table: table.delete("value = 1"), True),
        (lambda table: table.update(updates={"value": "value + 1"}), True),
        (lambda table: table.restore(0), True),
        (lose_a_commit, True),
        (commit_nothing, False),
        (set_property, False),
        (add_column, False),
        (lambda table: table.optimize.compact(), False),
        (lambda table: table.optimize.z_order(["value"]), False),
    ],
)
def test_commits_that_add_and_remove_no_rows_change_none(
    tmp_path: Path, change: Callable[[DeltaTable], object], *, expected: bool
) -> None:
    """A commit that the log lacks may have changed rows."""
    uri = str(tmp_path)
    append(uri, "0")
    append(uri, "1")
    change(DeltaTable(uri))
    assert DeltaTable(uri).version() > 1
    assert may_have_changed_rows(DeltaTable(uri), since=1) is expected
    assert may_have_changed_rows(DeltaTable(uri), since=DeltaTable(uri).version()) is False
    assert may_have_changed_rows(DeltaTable(uri), since=0)


def test_a_new_table_without_rows_has_not_changed(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), Schema([Field("value", PrimitiveType("long"))]))
    assert may_have_changed_rows(table, since=-1) is False


def test_a_decode_that_adds_no_typed_row_changes_none(tmp_path: Path) -> None:
    """The plan was undone, or all of its records went to the quarantine."""
    lake = TypedLake(tmp_path)
    lake.land_and_run(2)

    def decoded(expected: int) -> bool:
        before = DeltaTable(lake.typed_uri).version()
        lake.run()
        assert DeltaTable(lake.typed_uri).version() == before + expected
        return may_have_changed_rows(DeltaTable(lake.typed_uri), before)

    plan = lake.land_values([b"a"])
    lake.bronze.undo.undo(plan.sequence, "ops", "not meant")
    assert decoded(1) is False
    # The next plan also has the offset of the undone one.
    lake.broken = {2, 3}
    lake.land_values([b"b"])
    assert decoded(1) is False
    lake.land_values([b"c"])
    assert decoded(1) is True


@pytest.mark.parametrize("text", ["no JSON", f'{{"a": {"1" * 5_000}}}', "[" * 100_000, "[1]"])
def test_metadata_that_python_cannot_read_is_ignored(text: str) -> None:
    """Any program that writes to the table chooses the metadata of its commits."""
    commits = [{"version": 2, "userMetadata": text}, {"version": 1, "userMetadata": '{"a": 1}'}]
    assert [*commits_with_metadata(commits)] == [(1, {"a": 1})]

"""Tests of compactions that race with every other writer of a table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.support.file_lake import WEEK, FileLake, landed_lake
from tests.support.plans import append_events, make_plan
from tidemark.core.errors import SetupError, TransientError
from tidemark.core.events import Planned
from tidemark.delta import checked_commits, conflicts
from tidemark.delta.compaction import Compaction
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.errors import TableConflict
from tidemark.delta.live_files import live_files
from tidemark.ops.maintenance.rules import MaintenanceOutcome

pytestmark = pytest.mark.slow

ROWS = [(0, offset) for offset in range(12)]


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return a pipeline with four plans of three records each."""
    return landed_lake(tmp_path, plans=4)


def compact(lake: FileLake) -> None:
    assert lake.maintenance().maintain(WEEK).outcome is MaintenanceOutcome.MAINTAINED


def compact_by_hand(lake: FileLake) -> None:
    DeltaTable(lake.uri).optimize.compact()


def undo(lake: FileLake) -> None:
    lake.undo.undo(2, "ops", "a wrong deploy")


def replace_rows(lake: FileLake) -> None:
    lake.land_again((0, 0, 3))


def land(lake: FileLake) -> None:
    lake.run(3)


CONFLICTS = {"compact": compact, "by hand": compact_by_hand, "undo": undo, "replace": replace_rows}


# -- delta-rs itself -----------------------------------------------------------------------------


def table_of_four_files(uri: Path) -> Path:
    """Create a table of 40 rows in four files."""
    for start in range(0, 40, 10):
        write_deltalake(uri, pa.table({"x": list(range(start, start + 10))}), mode="append")
    return uri


def test_delta_rs_still_commits_two_compactions_of_one_version(tmp_path: Path) -> None:
    """If this fails, delta-rs refuses the second one, and decision 22 lists what to remove."""
    uri = table_of_four_files(tmp_path / "table")
    one, other = DeltaTable(uri), DeltaTable(uri)
    one.optimize.compact()
    other.optimize.compact(commit_properties=CommitProperties(max_commit_retries=0))
    assert DeltaTable(uri).count() == 80


def delete_over(stale: DeltaTable) -> None:
    stale.delete("x < 2")


def overwrite_over(stale: DeltaTable) -> None:
    rows = pa.table({"x": [0, 1]})
    write_deltalake(stale, rows, mode="overwrite", predicate="x < 2")


def merge_over(stale: DeltaTable) -> None:
    merge = stale.merge(pa.table({"x": [0, 1]}), "s.x = t.x", source_alias="s", target_alias="t")
    merge.when_matched_update_all().execute()


@pytest.mark.parametrize("change", [delete_over, overwrite_over, merge_over])
def test_delta_rs_refuses_other_changes_over_a_compaction(
    tmp_path: Path, change: Callable[[DeltaTable], None]
) -> None:
    """Undo, replacement and merge rely on it."""
    uri = table_of_four_files(tmp_path / "table")
    stale = DeltaTable(uri)
    assert Compaction(str(uri)).run() == 4
    with pytest.raises(CommitFailedError):
        change(stale)
    assert DeltaTable(uri).count() == 40


# -- between the snapshot and the commit of a compaction -----------------------------------------


@pytest.mark.parametrize("other", CONFLICTS.values(), ids=CONFLICTS)
def test_i1_a_compaction_is_refused_once_its_files_have_left_the_table(
    lake: FileLake, other: Callable[[FileLake], None]
) -> None:
    """Covers maintenance, a compaction by delta-rs, an undo, and a replacement."""
    compaction = Compaction(str(lake.uri))
    rewrites = compaction.rewrite()
    other(lake)
    expected, version = lake.rows(), DeltaTable(lake.uri).version()
    with pytest.raises(TableConflict):
        compaction.commit(rewrites)
    assert (lake.rows(), DeltaTable(lake.uri).version()) == (expected, version)
    assert len(set(expected)) == len(expected)


def test_i1_a_compaction_is_refused_once_its_new_files_were_removed(lake: FileLake) -> None:
    """A maintenance removes uncommitted files of a process that slept for longer than a week."""
    compaction = Compaction(str(lake.uri))
    rewrites = compaction.rewrite()
    for each in rewrites:
        for path in each.added_paths:
            (lake.uri / path).unlink()
    with pytest.raises(TableConflict):
        compaction.commit(rewrites)
    assert lake.rows() == ROWS


@pytest.mark.parametrize("other", CONFLICTS.values(), ids=CONFLICTS)
def test_i1_a_compaction_is_refused_if_its_files_leave_just_before_its_commit(
    lake: FileLake, other: Callable[[FileLake], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files leave the table between the compaction's check and its commit."""
    overtake(monkeypatch, lambda: other(lake))
    with pytest.raises(TableConflict):
        Compaction(str(lake.uri)).run()
    rows = lake.rows()
    assert len(set(rows)) == len(rows)
    lake.run(1)
    assert lake.verified()[0][0] == lake.verified()[0][1]


def overtake(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Call `other` once, between the last check of a compaction and its commit."""
    commit = checked_commits._commit
    calls = iter([other])

    def commit_late(*arguments: object) -> None:
        for call in calls:
            call()
        commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checked_commits, "_commit", commit_late)


def test_i1_a_compaction_commits_after_a_landing_just_before_its_commit(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtake(monkeypatch, lambda: land(lake))
    assert Compaction(str(lake.uri)).run() == 4
    assert lake.verified() == [(15, 15)]
    assert len(DeltaTable(lake.uri).file_uris()) == 2


def test_a_compaction_is_deferred_after_repeated_concurrent_commits(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next maintenance compacts."""
    with monkeypatch.context() as patched:
        overtake_always(patched, lake)
        with pytest.raises(TableConflict, match="20 times") as refused:
            Compaction(str(lake.uri)).run()
        assert isinstance(refused.value, TransientError)
        patched.setattr(conflicts, "_ATTEMPTS", 1)
        assert lake.maintenance().maintain(WEEK).outcome is MaintenanceOutcome.COMPACTION_DEFERRED
        assert lake.rows() == ROWS
        assert len(DeltaTable(lake.uri).file_uris()) == 4
    compact(lake)
    assert len(DeltaTable(lake.uri).file_uris()) == 1
    assert lake.verified() == [(12, 12)]


def test_an_undo_prevented_by_concurrent_commits_is_retryable_and_changes_nothing(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        overtake_always(patched, lake)
        with pytest.raises(TableConflict) as refused:
            undo(lake)
        assert isinstance(refused.value, TransientError)
        assert lake.rows() == ROWS
    undo(lake)
    assert lake.rows() == [row for row in ROWS if not 3 <= row[1] < 6]
    lake.run(1)
    assert lake.verified() == [(13, 13)]


def overtake_always(monkeypatch: pytest.MonkeyPatch, lake: FileLake) -> None:
    commit = checked_commits._commit
    properties = {"delta.logRetentionDuration": "interval 30 days"}

    def late(*arguments: object) -> None:
        DeltaTable(lake.uri).alter.set_table_properties(properties)
        commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checked_commits, "_commit", late)


def test_repeating_the_commit_of_a_compaction_changes_nothing(lake: FileLake) -> None:
    """The storage may not have acknowledged the first commit."""
    compaction = Compaction(str(lake.uri))
    rewrites = compaction.rewrite()
    assert compaction.commit(rewrites) == 4
    version = DeltaTable(lake.uri).version()
    assert compaction.commit(rewrites) == 4
    assert (lake.rows(), DeltaTable(lake.uri).version()) == (ROWS, version)


# -- between the snapshot and the commit of other writers ----------------------------------------


@pytest.mark.parametrize("step", ["discard", "append"])
def test_i1_an_undo_or_a_replacement_over_a_compaction_removes_only_its_rows(
    lake: FileLake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The undo repeats itself; a replacement succeeds when it is run again."""
    late = {"discard": "delete", "append": "get_add_actions"}[step]
    original = getattr(DeltaTable, late)
    once = iter([None])

    def overtaken(self: DeltaTable, *arguments: object, **named: object) -> object:
        for _ in once:
            compact(lake)
        return original(self, *arguments, **named)

    monkeypatch.setattr(DeltaTable, late, overtaken)
    again = undo if step == "discard" else replace_rows
    try:
        again(lake)
    except TableConflict:
        again(lake)
    expected = [row for row in ROWS if step != "discard" or not 3 <= row[1] < 6]
    assert lake.rows() == expected


# -- the control table ---------------------------------------------------------------------------


def control_of(tmp_path: Path) -> tuple[DeltaControlTable, str]:
    """Return a control table with three events of each of two pipelines."""
    uri = str(tmp_path / "control")
    control = DeltaControlTable(uri)
    for sequence in (1, 2, 3):
        for name in ("events", "prices"):
            plan = make_plan((0, sequence, sequence + 1), sequence=sequence, pipeline=name)
            append_events(control, name, Planned(plan=plan))
    return control, uri


@pytest.mark.parametrize("name", ["events", "prices"])
def test_i2_two_maintenances_of_the_control_table_keep_each_event_once(
    tmp_path: Path, name: str
) -> None:
    """One compacts a pipeline, the other the whole table."""
    control, uri = control_of(tmp_path)
    ledgers = [control.ledger(each) for each in ("events", "prices")]
    whole_table, part = Compaction(uri), Compaction(uri)
    all_files, own_files = whole_table.rewrite(), part.rewrite({"pipeline": name})
    assert part.commit(own_files) == 3
    assert whole_table.commit(all_files) == 3
    assert [control.ledger(each) for each in ("events", "prices")] == ledgers
    assert DeltaTable(uri).count() == 6
    plan = make_plan((0, 4, 5), sequence=4, pipeline=name)
    append_events(control, name, Planned(plan=plan))
    assert set(control.ledger(name).plans) == {1, 2, 3, 4}


# -- contents of files ---------------------------------------------------------------------------


def test_statistics_hold_for_all_rows_of_a_compacted_file(tmp_path: Path) -> None:
    """Columns that one of the files lacks have no bounds."""
    moment, uri = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC), tmp_path / "table"
    first = {"n": 5, "s": "b", "d": moment.date(), "t": moment, "o": {"x": 1}, "z": None}
    second = {"n": 3, "s": "ü", "d": None, "t": moment, "o": {"x": 9}, "z": 1.5}
    for row in (first, second):
        schema = pa.schema(
            {
                "n": pa.int64(),
                "s": pa.string(),
                "d": pa.date32(),
                "t": pa.timestamp("us", "UTC"),
                "o": pa.struct({"x": pa.int32()}),
                "z": pa.float64(),
            }
        )
        write_deltalake(uri, pa.Table.from_pylist([row], schema), mode="append")
    rows = pa.table(DeltaTable(uri).scan()).to_pylist()
    assert Compaction(str(uri)).run() == 2
    (file,) = live_files(DeltaTable(uri))
    bounds = {name: file.bounds[name] for name in ("min", "max", "null_count")}
    assert (bounds["min"]["n"], bounds["max"]["n"]) == (3, 5)
    assert (bounds["min"]["s"], bounds["max"]["s"]) == ("b", "ü")
    assert bounds["min"]["t"] <= moment
    late = DeltaTable(uri).scan(predicate="t > '2026-01-02T03:04:05.678900Z'").read_all()
    assert late.num_rows == 2
    assert (bounds["min"]["o"], bounds["max"]["o"]) == ({"x": 1}, {"x": 9})
    assert (bounds["null_count"]["d"], bounds["null_count"]["z"]) == (1, 1)
    assert bounds["min"].get("d") is None
    after = pa.table(DeltaTable(uri).scan()).to_pylist()
    assert sorted(after, key=lambda row: row["n"]) == sorted(rows, key=lambda row: row["n"])


def test_files_with_different_columns_are_compacted_separately(tmp_path: Path) -> None:
    uri = tmp_path / "table"
    for columns in ({"x": [1]}, {"x": [2]}, {"x": [3], "y": [3]}, {"x": [4], "y": [None]}):
        table = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
        write_deltalake(uri, table, mode="append", schema_mode="merge")
    assert Compaction(str(uri)).run() == 4
    assert len(DeltaTable(uri).file_uris()) == 2
    rows = pa.table(DeltaTable(uri).scan()).to_pylist()
    assert sorted((row["x"], row["y"]) for row in rows if row["y"]) == [(3, 3)]
    assert sorted(row["x"] for row in rows) == [1, 2, 3, 4]
    assert Compaction(str(uri)).run() == 0


def test_files_that_an_undo_has_rewritten_are_compacted(lake: FileLake) -> None:
    """delta-rs writes the remaining rows with types that PyArrow cannot write."""
    compact(lake)
    undo(lake)
    (rewritten,) = DeltaTable(lake.uri).file_uris()
    assert pq.read_schema(rewritten).field("key").type == pa.binary_view()
    lake.run(3)
    compact(lake)
    assert len(DeltaTable(lake.uri).file_uris()) == 1
    assert lake.verified() == [(15, 15)]


@pytest.mark.parametrize("value", ["a b", "ü/%", "x=y", "prices@typed", "#?"])
def test_partitions_with_special_characters_keep_their_rows(tmp_path: Path, value: str) -> None:
    """A removed file must have the same path as in the commit that added it."""
    for number in range(3):
        for each in (value, "plain"):
            table = pa.table({"p": [each], "x": [number]})
            write_deltalake(tmp_path, table, mode="append", partition_by=["p"])
    Compaction(str(tmp_path)).run()
    rows = pa.table(DeltaTable(tmp_path).scan()).to_pylist()
    expected = sorted((each, number) for each in (value, "plain") for number in range(3))
    assert sorted((row["p"], row["x"]) for row in rows) == expected
    assert DeltaTable(tmp_path).count() == 6


def test_the_target_size_of_a_table_bounds_its_files(lake: FileLake) -> None:
    """The size has bytes or a unit; an invalid size is refused."""
    sizes = DeltaTable(lake.uri).get_add_actions(flatten=True).column("size_bytes").to_pylist()
    for target_size, files in ((str(sizes[0] * 2 + 10), 2), ("1 kb", 4)):
        table = DeltaTable(lake.uri)
        table.alter.set_table_properties(
            {"delta.targetFileSize": target_size}, raise_if_not_exists=False
        )
        if files == 4:
            assert Compaction(str(lake.uri)).run() == 0
        else:
            Compaction(str(lake.uri)).run()
            assert len(DeltaTable(lake.uri).file_uris()) == files
    assert lake.rows() == ROWS
    DeltaTable(lake.uri).alter.set_table_properties(
        {"delta.targetFileSize": "large"}, raise_if_not_exists=False
    )
    with pytest.raises(SetupError, match="large"):
        Compaction(str(lake.uri)).rewrite()


def test_files_of_delta_rs_and_of_parquet_writers_are_compacted_together(tmp_path: Path) -> None:
    """delta-rs writes texts and bytes as views, also in lists, maps and structs."""
    rows = [
        {
            "x": number,
            "headers": [{"key": "k" * (number % 30), "value": b"v" * (number % 20)}, None],
            "named": [("a", "b" * (number % 25))],
            "inner": {"text": None if number % 7 else "ü" * (number % 15), "list": ["l", None]},
            "text": "t" * (number % 40),
        }
        for number in range(9_000)
    ]
    schema = pa.schema(
        {
            "x": pa.int64(),
            "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
            "named": pa.map_(pa.string(), pa.string()),
            "inner": pa.struct({"text": pa.string(), "list": pa.list_(pa.string())}),
            "text": pa.string(),
        }
    )
    uri = str(tmp_path)
    for part in range(3):
        some = pa.Table.from_pylist(rows[part * 3_000 : (part + 1) * 3_000], schema)
        write_deltalake(uri, some, mode="append")
        # Rewrites the file from delta-rs's types in memory.
        DeltaTable(uri).update(predicate=f"x < {part * 3_000 + 10}", updates={"text": "text"})
    write_deltalake(uri, pa.Table.from_pylist([{"x": 9_000}], schema), mode="append")
    files = len(DeltaTable(uri).file_uris())
    before = sorted(pa.table(DeltaTable(uri).scan()).to_pylist(), key=lambda row: row["x"])
    assert Compaction(uri).run() == files == 2
    after = pa.table(DeltaTable(uri).scan()).to_pylist()
    assert sorted(after, key=lambda row: row["x"]) == before
    assert len(DeltaTable(uri).file_uris()) == 1

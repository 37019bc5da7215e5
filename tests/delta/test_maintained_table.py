"""Tests of maintenance of real tables: compaction, removed files, retained files, clocks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.file_lake import LATER, WEEK, FileLake, age
from tests.support.plans import UNCOMPARED, append_events, make_plan
from tidemark.core.datafile import plan_folder
from tidemark.core.errors import SetupError, TableBehindLedger
from tidemark.core.events import Planned
from tidemark.core.ledger import Ledger
from tidemark.delta import maintained_table as maintained_table
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.errors import ClockDiffers, EngineFailed, ForeignTable
from tidemark.delta.maintained_table import DeltaMaintainedTable
from tidemark.delta.unreferenced_files import LONGEST_RETENTION, StoredFile
from tidemark.ops.maintenance.errors import RetentionTooShort
from tidemark.ops.maintenance.rules import MaintenanceOutcome, finished_plans_of

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    return FileLake(tmp_path)


def leave(lake: FileLake, folder: str, *names: str) -> set[str]:
    """Leave files in a folder of the table as a killed driver does; return their paths."""
    for name in names:
        file = lake.uri / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"rows")
    return {f"{folder}/{name}" for name in names}


# -- compaction ----------------------------------------------------------------------------------


def test_compaction_merges_small_files_and_keeps_every_landing(lake: FileLake) -> None:
    """I5. A second maintenance changes nothing."""
    plans = [lake.run(3, number % 2) for number in range(4)]
    before, rows = [lake.table.find_landing(plan) for plan in plans], lake.rows()
    done = lake.maintenance().maintain(WEEK)
    assert (done.outcome, done.replaced) == (MaintenanceOutcome.MAINTAINED, 4)
    assert done.before is not None
    assert done.after is not None
    assert (done.before.files, done.after.files) == (4, 1)
    assert [lake.table.find_landing(plan) for plan in plans] == before
    assert [lake.table.current_landing(plan).records for plan in plans] == [3, 3, 3, 3]
    assert lake.rows() == rows
    version = DeltaTable(lake.uri).version()
    assert (lake.uri / "_delta_log" / f"{version:020}.checkpoint.parquet").exists()
    again = lake.maintenance().maintain(WEEK)
    assert (again.replaced, DeltaTable(lake.uri).version()) == (0, version)


def test_i1_undo_and_landing_are_exact_after_each_maintenance(lake: FileLake) -> None:
    for records in (4, 3, 2):
        lake.run(records)
    lake.maintenance(LATER).maintain(WEEK)
    assert lake.verified() == [(9, 9)]
    assert lake.undo.undo(2, "ops", "a wrong deploy").rows == 3
    assert lake.rows() == [(0, offset) for offset in (0, 1, 2, 3, 7, 8)]
    lake.maintenance(LATER).maintain(WEEK)
    lake.run(1)
    assert lake.verified() == [(10, 10)]
    lake.maintenance(LATER).maintain(WEEK)
    assert lake.verified() == [(10, 10)]
    assert lake.committed()[0] == 10


def test_compacted_files_have_the_same_encoding_as_landed_files(lake: FileLake) -> None:
    """The bytes of a table's files limit plans."""
    lake.run(3)
    lake.run(3)
    column_names = set(DeltaTable(lake.uri).get_add_actions(flatten=True).column_names)
    lake.maintenance().maintain(WEEK)
    actions = DeltaTable(lake.uri).get_add_actions(flatten=True)
    assert set(actions.column_names) == column_names
    (file,) = DeltaTable(lake.uri).file_uris()
    footer = pq.read_metadata(file).row_group(0)
    columns = {footer.column(n).path_in_schema: footer.column(n) for n in range(11)}
    assert {column.compression for column in columns.values()} == {"SNAPPY"}
    assert columns["offset"].statistics.max == 5
    assert columns["value"].statistics.null_count == 0
    assert "RLE_DICTIONARY" not in columns["value"].encodings


def test_files_written_before_a_compaction_land_after_it(lake: FileLake) -> None:
    lake.run(3)
    lake.run(3)
    plan = lake.plan(4)
    files = lake.sink.write(plan, 100)
    lake.maintenance().maintain(WEEK)
    lake.table.append(plan, files, UNCOMPARED)
    lake.ingest.execute(plan.sequence)
    assert lake.verified() == [(10, 10)]


# -- removed files -------------------------------------------------------------------------------


def test_files_of_versions_older_than_the_retention_are_removed(lake: FileLake) -> None:
    """VACUUM does not find files that a checkpoint has dropped."""
    for _ in range(3):
        lake.run(3)
    lake.maintenance().maintain(WEEK)
    properties = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(lake.uri).alter.set_table_properties(properties)
    DeltaTable(lake.uri).create_checkpoint()
    DeltaTable(lake.uri).vacuum(0, dry_run=False)
    assert len(list(lake.uri.glob("plan-*/*.parquet"))) == 3
    size = sum(file.stat().st_size for file in lake.uri.glob("plan-*/*"))
    done = lake.maintenance(LATER).maintain(WEEK)
    assert done.bytes_freed == size
    # One file remains, and no folder.
    assert [path.count("/") for path in lake.stored()] == [0]
    assert lake.verified() == [(9, 9)]


def test_a_dry_run_returns_the_files_to_remove_and_removes_none(lake: FileLake) -> None:
    lake.run(3)
    lake.run(3)
    lake.maintenance().maintain(WEEK)
    lake.run(3)
    everything = sorted(lake.root.rglob("*"))
    draft = lake.maintenance(LATER).maintain(WEEK, dry_run=True)
    assert draft.outcome is MaintenanceOutcome.DRY_RUN
    assert len([file for file in draft.removed if file.path.endswith(".parquet")]) == 2
    assert sorted(lake.root.rglob("*")) == everything
    removed = lake.maintenance(LATER).maintain(WEEK).removed
    assert set(draft.removed) == set(removed)


def test_files_of_a_killed_process_are_removed_once_its_plan_is_finished(lake: FileLake) -> None:
    plan = lake.plan(3)
    folder = plan_folder(plan.sequence, uuid4())
    leave(lake, folder, "_SUCCESS", "part-1.parquet", ".part-1.parquet.crc")
    leave(lake, f"{folder}/_temporary/0/task_1", "part-2.parquet")
    stored = lake.stored()
    lake.maintenance(LATER).maintain(WEEK)
    assert lake.stored() == stored
    lake.ingest.execute(plan.sequence)
    lake.maintenance().maintain(WEEK)
    assert folder in lake.stored()
    lake.maintenance(LATER).maintain(WEEK)
    assert not {path for path in lake.stored() if path.startswith(folder)}
    assert lake.verified() == [(3, 3)]


def test_maintenance_keeps_files_of_other_programs(lake: FileLake) -> None:
    lake.run(3)
    others = {
        *leave(lake, "notes", "part-1.parquet", "a.txt"),
        *leave(lake, "plan-7", "part-1.parquet"),
        *leave(lake, "plan-1-draft", "part-1.parquet"),
        *leave(lake, "_archive", "part-1.parquet"),
        *leave(lake, f"notes/{plan_folder(1, uuid4())}", "part-1.parquet"),
        *leave(lake, ".", "deletion_vector_1.bin", "rows.parquet"),
    }
    removed = leave(lake, ".", "part-00000-1-c000.snappy.parquet")
    lake.maintenance(LATER).maintain(WEEK)
    assert {path.removeprefix("./") for path in others} <= lake.stored()
    assert not {path.removeprefix("./") for path in removed} & lake.stored()
    assert lake.verified() == [(3, 3)]


# -- retained files ------------------------------------------------------------------------------


def test_old_files_of_an_open_plan_stay_and_can_land(lake: FileLake) -> None:
    """I1, I4. Files of an abandoned plan are removed."""
    abandoned = lake.plan(2)
    abandoned_files = lake.sink.write(abandoned, 100)
    lake.abandon.abandon(abandoned.sequence, "ops", "too large")
    plan = lake.plan(3)
    files = lake.sink.write(plan, 100)
    done = lake.maintenance(LATER).maintain(WEEK)
    assert {file.path for file in abandoned_files} < {file.path for file in done.removed}
    assert all(Path(lake.uri, file.path).exists() for file in files)
    lake.table.append(plan, files, UNCOMPARED)
    lake.ingest.execute(plan.sequence)
    lake.maintenance(LATER).maintain(WEEK)
    assert lake.verified() == [(5, 5)]


def test_files_of_a_plan_newer_than_the_ledger_stay(lake: FileLake) -> None:
    """The plan may land after maintenance read the ledger."""
    lake.run(2)
    maintenance = lake.maintenance(LATER)
    is_finished = maintenance.finished_plans()
    plan = lake.plan(3)
    files = lake.sink.write(plan, 100)
    maintenance.table.remove_unreferenced(maintenance.now(), timedelta(0), is_finished)
    lake.table.append(plan, files, UNCOMPARED)
    lake.ingest.execute(plan.sequence)
    assert lake.verified() == [(5, 5)]


def test_a_version_within_the_retention_can_be_read(lake: FileLake) -> None:
    """Its old files have just left the table, and a checkpoint has dropped them."""
    lake.run(3)
    lake.run(3)
    version = DeltaTable(lake.uri).version()
    age(lake.uri)
    properties = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(lake.uri).alter.set_table_properties(properties)
    assert lake.maintenance().maintain(WEEK).replaced == 2
    DeltaTable(lake.uri).create_checkpoint()
    lake.maintenance().maintain(WEEK)
    assert lake.rows(version) == [(0, offset) for offset in range(6)]
    lake.run(1)
    DeltaTable(lake.uri).restore(version)
    assert lake.rows() == [(0, offset) for offset in range(6)]


class TableWithConcurrentRemoval(DeltaMaintainedTable):
    """Maintained table from which another process removes rows during the search for files."""

    other: Callable[[], object]

    def _newest_version(self) -> DeltaTable:
        self.other()
        return super()._newest_version()


def test_files_that_leave_the_table_during_maintenance_stay(lake: FileLake) -> None:
    """Readers of the previous version need them."""
    plan = lake.run(3)
    version = DeltaTable(lake.uri).version()
    age(lake.uri)
    maintained = TableWithConcurrentRemoval(str(lake.uri), "events")
    maintained.other = lambda: lake.table.remove_rows(plan, 0, UNCOMPARED)
    lake.maintenance(table=maintained).maintain(WEEK)
    assert lake.rows() == []
    assert lake.rows(version) == [(0, 0), (0, 1), (0, 2)]


def test_maintenance_of_a_restored_table_is_refused(lake: FileLake) -> None:
    """I7. The repair may need every file."""
    lake.run(3)
    version = DeltaTable(lake.uri).version()
    lake.run(3)
    DeltaTable(lake.uri).restore(version)
    stored, newest = lake.stored(), DeltaTable(lake.uri).version()
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        lake.maintenance(LATER).maintain(WEEK)
    assert (lake.stored(), DeltaTable(lake.uri).version()) == (stored, newest)


@pytest.mark.parametrize(
    ("property_value", "requested_hours", "expected_hours"),
    [
        (None, 167, None),
        (None, 168, 168),
        ("interval 2 hours", 1, None),
        ("interval 2 hours", 2, 2),
        ("interval 30 days", 167, None),
        ("interval 30 days", 168, 720),
        ("interval 1 week 2 days", 168, 216),
    ],
)
def test_a_retention_below_the_minimum_is_refused(
    lake: FileLake, property_value: str | None, requested_hours: int, expected_hours: int | None
) -> None:
    """The minimum is a week, or the table's own retention if that is shorter."""
    lake.run(3)
    if property_value:
        properties = {"delta.deletedFileRetentionDuration": property_value}
        DeltaTable(lake.uri).alter.set_table_properties(properties)
    stored = lake.stored()
    maintenance = lake.maintenance(LATER)
    if expected_hours is None:
        with pytest.raises(RetentionTooShort) as caught:
            maintenance.maintain(timedelta(hours=requested_hours))
        assert caught.value.requested_hours == requested_hours
        assert lake.stored() == stored
    else:
        assert maintenance.maintain(timedelta(hours=requested_hours)).retention == timedelta(
            hours=expected_hours
        )


@pytest.mark.parametrize(
    "retention",
    ["interval 800000 days", "interval 3650000 days", "interval 1000000000 weeks"],
)
def test_a_retention_of_for_ever_keeps_every_file(lake: FileLake, retention: str) -> None:
    for _ in range(2):
        lake.run(3)
    lake.undo.undo(1, "ops", "wrong")
    properties = {"delta.deletedFileRetentionDuration": retention}
    DeltaTable(lake.uri).alter.set_table_properties(properties)
    stored = lake.stored()
    done = lake.maintenance(LATER).maintain(WEEK)
    assert done.removed == ()
    assert lake.stored() == stored
    assert done.retention == LONGEST_RETENTION


def test_a_requested_retention_of_thousands_of_years_keeps_every_file(lake: FileLake) -> None:
    for _ in range(2):
        lake.run(3)
    lake.undo.undo(1, "ops", "wrong")
    stored = lake.stored()
    done = lake.maintenance(LATER).maintain(timedelta(hours=10**8))
    assert (done.removed, done.retention) == ((), LONGEST_RETENTION)
    assert lake.stored() == stored


def test_an_unparsable_table_retention_is_refused(lake: FileLake) -> None:
    """Another engine may have written it, and it may be long."""
    lake.run(3)
    log = lake.uri / "_delta_log"
    for commit in log.glob("*0.json"):
        text = '"configuration":{"delta.deletedFileRetentionDuration":"interval 2 moons",'
        commit.write_text(commit.read_text().replace('"configuration":{', text))
    with pytest.raises(SetupError, match="2 moons"):
        lake.maintenance(LATER).maintain(WEEK)


def test_maintenance_refuses_foreign_tables_and_accepts_a_missing_one(lake: FileLake) -> None:
    assert lake.maintenance().maintain(WEEK).outcome is MaintenanceOutcome.NO_TABLE
    assert list(lake.root.iterdir()) == []
    lake.run(3)
    with pytest.raises(ForeignTable):
        lake.maintenance(table=DeltaMaintainedTable(str(lake.uri), "other")).maintain(WEEK)


def test_a_failed_removal_raises_engine_failed(lake: FileLake) -> None:
    lake.run(3)

    class TableWithoutPermission(DeltaMaintainedTable):
        def _newest_version(self) -> DeltaTable:
            raise PermissionError("not allowed")

    with pytest.raises(EngineFailed, match="not allowed"):
        lake.maintenance(table=TableWithoutPermission(str(lake.uri), "events")).maintain(WEEK)


def test_a_removed_file_is_no_error(lake: FileLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another maintenance or a log cleanup removed it since it was listed."""
    lake.run(3)
    listed = maintained_table._stored_files

    def outdated(files: object) -> list[StoredFile]:
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        removed_files = ("part-gone.parquet", 0), (f"_delta_log/{7:020}.json", now_ms + 1)
        return [
            *listed(files),
            *(StoredFile(path=path, size=1, modified_ms=when) for path, when in removed_files),
        ]

    monkeypatch.setattr(maintained_table, "_stored_files", outdated)
    removed = lake.maintenance().maintain(WEEK).removed
    assert [file.path for file in removed] == ["part-gone.parquet"]


# -- clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [8, -8])
def test_a_machine_with_a_wrong_clock_removes_no_file(lake: FileLake, days: int) -> None:
    """I1. A file of an open plan could look a week old."""
    lake.run(3)
    lake.run(3)
    files = leave(lake, ".", "part-00000-1-c000.snappy.parquet")
    maintenance = lake.maintenance(
        table=DeltaMaintainedTable(str(lake.uri), "events"),
        now=lambda: datetime.now(UTC) + timedelta(days=days),
    )
    stored = lake.stored()
    with pytest.raises(ClockDiffers) as caught:
        maintenance.maintain(WEEK)
    assert round((caught.value.local - caught.value.storage) / timedelta(days=1)) == days
    assert stored <= lake.stored()
    assert {path.removeprefix("./") for path in files} < lake.stored()
    assert not [path for path in lake.stored() if "clock" in path]
    assert lake.verified() == [(6, 6)]


def test_the_age_of_files_is_measured_by_the_storages_clock(lake: FileLake) -> None:
    """This machine's clock is five minutes slow."""
    lake.run(3)
    leave(lake, ".", "part-00000-1-c000.snappy.parquet")
    file = lake.uri / "part-00000-1-c000.snappy.parquet"
    written = (datetime.now(UTC) - WEEK - timedelta(minutes=1)).timestamp()
    os.utime(file, (written, written))
    now = lambda: datetime.now(UTC) - timedelta(minutes=5)  # noqa: E731
    assert [each.path for each in lake.maintenance(now=now).maintain(WEEK).removed] == [file.name]


def test_leftover_probes_are_removed_after_an_hour(lake: FileLake) -> None:
    """The probes are the clock file and the folder for testing conditional writes."""
    lake.run(3)
    for age_s in (3_500, 3_700):
        trial = lake.uri / f".tidemark-trial-{age_s}"
        trial.mkdir()
        for file in (trial / "aside", lake.uri / f".tidemark-clock-{age_s}"):
            file.touch()
            then = datetime.now(UTC).timestamp() - age_s
            os.utime(file, (then, then))
    draft = lake.maintenance().maintain(WEEK, dry_run=True)
    done = lake.maintenance().maintain(WEEK)
    expected = {".tidemark-trial-3700/aside", ".tidemark-clock-3700"}
    assert {file.path for file in draft.removed} == {file.path for file in done.removed} == expected
    remaining = {path.name for path in lake.uri.glob(".tidemark-*")}
    assert remaining == {".tidemark-trial-3500", ".tidemark-clock-3500"}


def test_commits_stay_in_the_log_until_maintenance_has_checked_the_clock(lake: FileLake) -> None:
    """A writer whose clock is 40 days fast considers each commit expired."""
    for _ in range(12):
        lake.run(1)
    commits = sorted(lake.uri.glob("_delta_log/*.json"))
    control = sorted((lake.control_uri / "_delta_log").glob("*.json"))
    age(lake.root, days=40)
    for _ in range(10):
        lake.run(1)
    assert all(path.exists() for path in (*commits, *control))
    assert lake.maintenance().maintain(WEEK).outcome is MaintenanceOutcome.MAINTAINED
    assert not any(path.exists() for path in commits[:9])
    assert lake.verified() == [(22, 22)]
    lake.run(1)
    assert lake.verified() == [(23, 23)]


# -- tables that only delta-rs writes ------------------------------------------------------------


def test_maintenance_keeps_every_event_of_the_control_table(tmp_path: Path) -> None:
    uri = tmp_path / "control"
    control = DeltaControlTable(str(uri))
    names = ("events", "prices")
    for sequence in (1, 2, 3):
        for name in names:
            plan = make_plan((0, sequence, sequence + 1), sequence=sequence, pipeline=name)
            append_events(control, name, Planned(plan=plan))
    ledgers = [control.ledger(name) for name in names]
    maintained = DeltaMaintainedTable(str(uri))
    assert maintained.compact() == 6
    removed = maintained.remove_unreferenced(datetime.now(UTC), -LATER, lambda _: False)
    assert len(removed) == 6
    assert len(DeltaTable(uri).file_uris()) == 2
    assert [control.ledger(name) for name in names] == ledgers
    plan = make_plan((0, 4, 5), sequence=4)
    append_events(control, "events", Planned(plan=plan))
    assert set(control.ledger("events").plans) == {1, 2, 3, 4}


def test_maintenance_keeps_files_of_partitions_with_special_characters(tmp_path: Path) -> None:
    for value in ("a b", "ü/%", "x=y", "prices@typed"):
        write_deltalake(tmp_path, pa.table({"p": [value], "x": [1]}), mode="append",
                        partition_by=["p"])  # fmt: skip
    assert (
        DeltaMaintainedTable(str(tmp_path)).remove_unreferenced(
            datetime.now(UTC), -LATER, lambda _: True
        )
        == []
    )
    assert pa.table(DeltaTable(tmp_path).scan()).num_rows == 4


@pytest.mark.parametrize("name", ["part-ü 1%.parquet", "part-a%20b.parquet"])
def test_maintenance_keeps_files_with_encoded_paths_in_the_log(lake: FileLake, name: str) -> None:
    """Other engines encode paths; an older version may have the file too."""
    plan = lake.plan(3)
    (file, *_) = lake.sink.write(plan, 100)
    (lake.uri / file.path).rename(lake.uri / name)
    lake.table.append(plan, [replace(file, path=name)], UNCOMPARED)
    lake.ingest.execute(plan.sequence)
    version = DeltaTable(lake.uri).version()
    lake.maintenance().table.remove_unreferenced(datetime.now(UTC), -LATER, lambda _: True)
    assert lake.verified() == [(3, 3)]
    age(lake.uri)
    lake.undo.undo(plan.sequence, "ops", "x")
    lake.maintenance().maintain(WEEK)
    assert len(lake.rows(version)) == 3


def test_no_plan_is_finished_in_an_empty_ledger() -> None:
    assert not finished_plans_of(Ledger(pipeline="events"))(1)

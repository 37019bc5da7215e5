"""Tests that tables without a complete log are refused and not taken for empty tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fixtures_stores import PlaceIn
from tests.lake.test_conditional_writes import append_event, stored
from tests.support.commands import Command
from tests.support.file_lake import FileLake, home_lake
from tests.support.stores import Store
from tidemark.core.errors import ExitCode
from tidemark.lake.control_table import DeltaControlTable
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.errors import DeltaLogDamaged
from tidemark.lake.table_io import open_if_exists

COMMANDS = {
    "control/offset_ranges": (
        ("plan", "events"),
        ("ingest", "events"),
        ("undo", "events", "--plan", "1", "--reason", "test"),
        ("control", "repair", "--apply"),
        ("maintain", "events"),
        ("status", "events", "--exit-code"),
    ),
    "bronze/events": (
        ("plan", "events"),
        ("ingest", "events"),
        ("undo", "events", "--plan", "1", "--reason", "test"),
        ("maintain", "events"),
    ),
}


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return pipeline `events` with three landed plans."""
    return home_lake(tmp_path)


def files(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def is_refused(offline: Command, *command: str) -> bool:
    ran = offline(*command, "--json")
    return ran.code == ExitCode.REFUSED and '"DeltaLogDamaged"' in ran.out


def without_log(table: Path) -> None:
    shutil.rmtree(table / "_delta_log")


def without_commits(table: Path) -> None:
    without_log(table)
    (table / "_delta_log").mkdir()


def without_first_commit(table: Path) -> None:
    (table / "_delta_log" / f"{0:020}.json").unlink()


def without_a_commit(table: Path) -> None:
    (table / "_delta_log" / f"{2:020}.json").unlink()


DAMAGES = (without_commits, without_first_commit, without_a_commit)


@pytest.mark.slow
@pytest.mark.parametrize("table", COMMANDS)
def test_no_command_writes_to_a_table_without_its_log(
    lake: FileLake, offline: Command, table: str
) -> None:
    without_log(lake.root / table)
    before = files(lake.root / table)
    assert [each for each in COMMANDS[table] if not is_refused(offline, *each)] == []
    first = offline("plan", "events").err.splitlines()[0]
    problem = f"The Delta log of {lake.root / table} is missing or incomplete: "
    assert first.startswith(f"DeltaLogDamaged: {problem}")
    assert ".parquet" in first
    assert files(lake.root / table) == before


def test_the_status_reports_a_table_without_its_log(lake: FileLake) -> None:
    without_log(lake.uri)
    problem = lake.status().problem
    assert isinstance(problem, DeltaLogDamaged)
    assert str(lake.uri) in str(problem)


@pytest.mark.parametrize("table", COMMANDS)
def test_an_incomplete_log_is_refused(lake: FileLake, offline: Command, table: str) -> None:
    """An interrupted copy leaves such a log."""
    copy = shutil.copytree(lake.root / table, lake.root / "whole")
    for damage in DAMAGES:
        damage(lake.root / table)
        assert is_refused(offline, "plan", "events"), damage
        shutil.rmtree(lake.root / table)
        shutil.copytree(copy, lake.root / table)


def test_a_control_table_without_its_log_is_rebuilt_from_the_data_table(
    lake: FileLake, offline: Command
) -> None:
    """The steps are those of the runbook."""
    without_log(lake.control_uri)
    assert is_refused(offline, "plan", "events")
    lake.control_uri.rename(lake.root / "aside")
    behind = offline("plan", "events", "--json")
    assert (behind.code, behind.json["error"]) == (ExitCode.REFUSED, "LedgerBehindTable")
    lake.repair.rebuild("test", "the log was lost")
    lake.run(2)
    assert lake.rows() == [(0, offset) for offset in range(11)]


@pytest.mark.store
def test_objects_without_a_log_are_not_an_empty_table(
    conditional_store: Store, place_in: PlaceIn
) -> None:
    """Files of other tables below the location do not count."""
    place = place_in(conditional_store)
    append_event(DeltaControlTable(f"{place}/lake/control"), "events")
    assert DeltaControlTable(f"{place}/lake").ledger("events").event_number == 0
    conditional_store.put(f"{place}/copy/pipeline=events/part-0.parquet", b"rows")
    conditional_store.put(f"{place}/copy/.tidemark-trial-1/part-0.parquet", b"rows")
    before = stored(place)
    with pytest.raises(DeltaLogDamaged, match=r"pipeline=events/part-0\.parquet"):
        append_event(DeltaControlTable(f"{place}/copy"), "events")
    with pytest.raises(DeltaLogDamaged):
        DeltaDataTable(f"{place}/copy").prepare("events")
    assert stored(place) == before


def test_a_folder_of_plain_parquet_files_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"value": [1]}), tmp_path / "part-0.parquet")
    with pytest.raises(DeltaLogDamaged, match="and no Delta log") as caught:
        open_if_exists(str(tmp_path))
    assert "another location" in caught.value.rendered("fix")

"""Tests that tables with a missing or damaged log are refused and not taken for empty tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.delta.test_conditional_writes import append_event, stored
from tests.delta.test_status_table import row
from tests.fixtures_stores import PlaceIn
from tests.quality.test_check_results_table import report_of
from tests.support.commands import Command
from tests.support.file_lake import WEEK, FileLake, home_lake, put_back
from tests.support.services import NOW
from tests.support.stores import Store
from tests.support.typed_lake import TypedLake
from tidemark.core.errors import ExitCode
from tidemark.core.plan import PlanRef
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import DeltaLogDamaged
from tidemark.delta.status_history import append_statuses, read_lags
from tidemark.delta.status_table import read_status, write_status
from tidemark.delta.table_io import open_if_exists
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.silver.typed.schema_table import DeltaSchemaStore
from tidemark.spec.decode import RegisteredSchema

Use = Callable[[], object]

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


def with_a_truncated_commit(table: Path) -> None:
    commit = table / "_delta_log" / f"{2:020}.json"
    commit.write_bytes(commit.read_bytes()[:100])


def with_a_commit_of_zeros(table: Path) -> None:
    """Some file systems leave such a file after a power failure."""
    (table / "_delta_log" / f"{2:020}.json").write_bytes(bytes(500))


def checkpoint(table: Path) -> Path:
    """Create a checkpoint, and return its file."""
    DeltaTable(table).create_checkpoint()
    (file,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    return file


def without_its_checkpoint(table: Path) -> None:
    checkpoint(table).unlink()


def with_a_truncated_checkpoint(table: Path) -> None:
    file = checkpoint(table)
    file.write_bytes(file.read_bytes()[:-10])


def with_a_damaged_checkpoint(table: Path) -> None:
    file = checkpoint(table)
    content = bytearray(file.read_bytes())
    half = len(content) // 2
    content[4:half] = bytes(half - 4)
    file.write_bytes(content)


DAMAGES = (
    *(without_commits, without_first_commit, without_a_commit),
    *(with_a_truncated_commit, with_a_commit_of_zeros),
    *(without_its_checkpoint, with_a_truncated_checkpoint, with_a_damaged_checkpoint),
)


@pytest.mark.slow
@pytest.mark.parametrize("table", COMMANDS)
def test_no_command_writes_to_a_table_without_its_log(
    lake: FileLake, offline: Command, table: str
) -> None:
    without_log(lake.root / table)
    before = files(lake.root / table)
    assert [each for each in COMMANDS[table] if not is_refused(offline, *each)] == []
    first = offline("plan", "events").err.splitlines()[0]
    problem = f"The Delta log of {lake.root / table} is missing, incomplete or damaged: "
    assert first.startswith(f"DeltaLogDamaged: {problem}")
    assert ".parquet" in first
    assert files(lake.root / table) == before


@pytest.mark.parametrize("table", ["typed_uri", "quarantine_uri", "bronze", "control"])
def test_a_log_without_the_newest_commit_is_damaged_until_it_is_restored(
    tmp_path: Path, table: str
) -> None:
    """Only a checkpoint has the version. delta-rs opens the table, and commits nothing to it."""
    lake = TypedLake(tmp_path)
    lake.land_and_run(4, 1)
    places = {"bronze": lake.bronze.uri, "control": lake.bronze.control_uri}
    uri = places.get(table) or getattr(lake, table)
    lake.broken = {1, 4}
    opened = DeltaTable(uri)
    opened.create_checkpoint()
    newest = uri / "_delta_log" / f"{opened.version():020}.json"
    newest.rename(tmp_path / "moved")

    def run() -> None:
        lake.bronze.run(1)
        lake.run()

    for _ in range(2):
        with pytest.raises(DeltaLogDamaged, match="has no commit of the newest version") as found:
            run()
        assert found.value.location == str(uri)
    (tmp_path / "moved").rename(newest)
    run()
    lake.check()


def test_the_status_reports_a_table_without_its_log(lake: FileLake) -> None:
    without_log(lake.uri)
    problem = lake.status().problem
    assert isinstance(problem, DeltaLogDamaged)
    assert str(lake.uri) in str(problem)


@pytest.mark.parametrize("table", COMMANDS)
def test_a_damaged_log_is_refused(lake: FileLake, offline: Command, table: str) -> None:
    """An interrupted copy leaves an incomplete log."""
    copy = shutil.copytree(lake.root / table, lake.root / "whole")
    for damage in DAMAGES:
        damage(lake.root / table)
        assert is_refused(offline, "plan", "events"), damage
        put_back(copy, lake.root / table)


def quarantine(root: Path) -> tuple[Path, Use]:
    lake = TypedLake(root)
    for broken in (1, 4, 7):
        lake.land_and_run(3, broken)
    lake.bronze.run(1)
    return lake.quarantine_uri, lake.decodes.next


def check_results(root: Path) -> tuple[Path, Use]:
    for plan in (1, 2, 3):
        DeltaCheckResults(str(root)).append(report_of(plan, 1))
    first = PlanRef(pipeline="prices", sequence=1)
    return root, lambda: DeltaCheckResults(str(root)).checked([first])


def schemas(root: Path) -> tuple[Path, Use]:
    store = DeltaSchemaStore(str(root), "trades", lambda: NOW)
    for number in (1, 2, 3):
        store.store([RegisteredSchema(id=number, kind="AVRO", text='"string"')])
    return root, lambda: store.stored([1])


def statuses(root: Path) -> tuple[Path, Use]:
    for lag in (1, 2, 3):
        write_status(str(root), [row("events", lag=lag)])
    return root, lambda: read_status(str(root))


def status_history(root: Path) -> tuple[Path, Use]:
    for lag in (1, 2, 3):
        append_statuses(str(root), [row("events", lag=lag)])
    return root, lambda: read_lags(str(root), NOW - WEEK, WEEK)


@pytest.mark.slow
@pytest.mark.parametrize("create", [quarantine, check_results, schemas, statuses, status_history])
def test_the_error_of_a_damaged_log_names_its_table(
    tmp_path: Path, create: Callable[[Path], tuple[Path, Use]]
) -> None:
    """A decode reads the log of the quarantine."""
    table, use = create(tmp_path / "tables")
    copy = shutil.copytree(table, tmp_path / "whole")
    for damage in DAMAGES:
        damage(table)
        before = files(tmp_path)
        with pytest.raises(DeltaLogDamaged) as caught:
            use()
        assert caught.value.location == str(table), damage
        assert files(tmp_path) == before, damage
        put_back(copy, table)
    use()


@pytest.mark.parametrize("damage", [without_a_commit, with_a_truncated_commit])
def test_maintenance_names_a_damaged_log(
    lake: FileLake, offline: Command, damage: Callable[[Path], None]
) -> None:
    """The other tables are maintained."""
    for plan in (1, 2, 3):
        DeltaCheckResults(str(lake.root / "quality" / "results")).append(report_of(plan, 1))
    for table in ("quality/results", "bronze/events"):
        damage(lake.root / table)
    ran = offline("maintain", "--json")
    assert ran.code == ExitCode.REFUSED
    outcomes = {
        each["table"]: each.get("error", each.get("outcome")) for each in ran.json["tables"]
    }
    damaged = [name for name, outcome in outcomes.items() if outcome == "DeltaLogDamaged"]
    assert damaged == ["events", "quality results"]
    assert outcomes["control table"] == "maintained"


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_repair_of_the_control_table_names_a_damaged_log(
    lake: FileLake, offline: Command, damage: Callable[[Path], None]
) -> None:
    damage(lake.control_uri)
    assert is_refused(offline, "control", "repair", "--apply")


def test_a_control_table_without_its_log_is_rebuilt_from_the_data_table(
    lake: FileLake, offline: Command
) -> None:
    """The steps are those of the runbook. The operator repeats the lost decisions."""
    lake.publication.reject(2, "ada", "wrong prices")
    without_log(lake.control_uri)
    assert is_refused(offline, "plan", "events")
    lake.control_uri.rename(lake.root / "aside")
    behind = offline("plan", "events", "--json")
    assert (behind.code, behind.json["error"]) == (ExitCode.REFUSED, "LedgerBehindTable")
    lost = pq.read_table(lake.root / "aside").to_pylist()
    assert [row["plan_sequence"] for row in lost if row["status"] and row["requested_by"]] == [2]
    lake.repair.rebuild("test", "the log was lost")
    assert lake.control.publication_statuses("events") == {}
    lake.publication.reject(2, "ada", "wrong prices")
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

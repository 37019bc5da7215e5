"""Tests of control tables with duplicate events, missing files or damaged files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from typer.testing import CliRunner

from tests.support.file_lake import WEEK, FileLake, double, home_lake, landed_lake
from tests.support.plans import append_events, make_plan
from tests.support.services import NOW
from tidemark.core.errors import ControlTableDamaged, LedgerBehindTable, SetupError, TidemarkError
from tidemark.core.events import Adopted, Planned
from tidemark.core.ledger import CheckedLedger
from tidemark.core.origins import RunOrigin
from tidemark.core.plain import plain
from tidemark.delta.compaction import Compaction
from tidemark.delta.control_repair import DeltaControlRepair
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.errors import StorageRefused

pytestmark = pytest.mark.slow

PARTITION = "partition.pipeline"


def summary_by_sql(control: DeltaControlTable) -> object:
    """Return the summary as SQL computes it for a pipeline with many events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.delta.ledger_summary.MAX_ROWS_IN_FULL", -1)
        return control.summary("events")


READS: dict[str, Callable[[DeltaControlTable], object]] = {
    "ledger": lambda control: control.ledger("events"),
    "summary": lambda control: control.summary("events"),
    "summary by SQL": summary_by_sql,
    "plan_record": lambda control: control.plan_record("events", 1),
}


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return a pipeline with four plans, and another pipeline in the same control table."""
    lake = landed_lake(tmp_path, plans=4)
    plan = make_plan((0, 0, 1), pipeline="prices")
    append_events(lake.control, "prices", Planned(plan=plan))
    return lake


def uri_of(lake: FileLake) -> str:
    return str(lake.control_uri)


def remove_file(uri: str, number: int) -> Path:
    """Remove the file of an event of `events` and return its path."""
    actions = DeltaTable(uri).get_add_actions(flatten=True)
    files = zip(
        actions.column("path").to_pylist(),
        actions.column("min.event_number").to_pylist(),
        actions.column(PARTITION).to_pylist(),
        strict=True,
    )
    (path,) = (path for path, event, name in files if (event, name) == (number, "events"))
    file = Path(uri, path)
    file.unlink()
    return file


def copy_to_name_with_space(uri: str, pipeline: str, *, into: str | None = None) -> int:
    """Copy a pipeline's file to a name with a space and return its event number.

    Args:
        uri: The control table.
        pipeline: The pipeline.
        into: The pipeline of the copy; the same one if None.
    """
    table = DeltaTable(uri)
    actions = table.get_add_actions(flatten=True)
    path, number = next(
        (path, number)
        for path, number, name in zip(
            *(actions.column(name).to_pylist() for name in ("path", "min.event_number", PARTITION)),
            strict=True,
        )
        if name == pipeline
    )
    into = into or pipeline
    copy = f"pipeline={into}/a copy.parquet"
    Path(uri, copy).parent.mkdir(exist_ok=True)
    shutil.copy(Path(uri, unquote(path)), Path(uri, copy))
    added = AddAction(
        path=copy,
        size=Path(uri, copy).stat().st_size,
        partition_values={"pipeline": into},
        modification_time=0,
        data_change=True,
        stats='{"numRecords": 1}',
    )
    table.create_write_transaction([added], "append", table.schema(), ["pipeline"])
    return int(number)


# -- duplicate events ----------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_read_reports_duplicate_events_with_their_numbers(
    lake: FileLake, read: Callable[[DeltaControlTable], object]
) -> None:
    events = lake.control.ledger("events").event_number
    double(uri_of(lake))
    with pytest.raises(ControlTableDamaged, match="more than once") as caught:
        read(lake.control)
    assert int(caught.value.finding.rpartition(" ")[2].removesuffix(".")) <= events
    assert "control repair" in str(caught.value)


def test_a_repair_keeps_each_duplicate_event_once_and_the_pipeline_continues(
    lake: FileLake,
) -> None:
    control, uri = lake.control, uri_of(lake)
    names = ("events", "prices")
    ledgers, rows = [control.ledger(name) for name in names], DeltaTable(uri).count()
    double(uri)
    assert DeltaTable(uri).count() > rows
    repair = DeltaControlRepair(uri)
    draft = repair.repair(dry_run=True)
    assert draft.duplicate_events["events"] == tuple(range(1, ledgers[0].event_number + 1))
    version = DeltaTable(uri).version()
    with pytest.raises(ControlTableDamaged, match="more than once"):
        lake.run(1)
    with pytest.raises(ControlTableDamaged, match="more than once"):
        lake.repair.rebuild("ops", "duplicates")
    assert (DeltaTable(uri).version(), repair.repair().duplicate_events) == (
        version,
        draft.duplicate_events,
    )
    assert [control.ledger(name) for name in names] == ledgers
    assert DeltaTable(uri).count() == rows
    assert plain(repair.repair()) == {"missing_files": [], "duplicate_events": {}}
    lake.run(2)
    assert lake.verified() == [(15, 15)]
    assert Compaction(uri).run() > 0
    assert control.summary("events").records == control.ledger("events").records == 15


def test_a_repair_keeps_concurrent_events(lake: FileLake, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = uri_of(lake)
    ledger = CheckedLedger(lake.control.ledger("events"))
    double(uri)
    commit = Compaction.commit

    def append_and_commit(self: Compaction, *arguments: object) -> int:
        other = DeltaControlTable(uri)
        other.append(ledger, [Adopted(sequence=4, origin=RunOrigin("late"))], NOW)
        return commit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Compaction, "commit", append_and_commit)
    repair = DeltaControlRepair(uri)
    repair._write_once("events")
    monkeypatch.undo()
    repair.repair()
    after = lake.control.ledger("events")
    assert after.event_number == ledger.event_number + 1
    assert after.plans[4].requesters[-1] == RunOrigin("late")
    assert after.records == ledger.records


def test_a_repair_reports_a_duplicated_file_that_cannot_be_replaced(lake: FileLake) -> None:
    """delta-rs cannot remove a file with a space in its name."""
    uri = uri_of(lake)
    number = copy_to_name_with_space(uri, "events")
    repair = DeltaControlRepair(uri)
    duplicates = repair.repair(dry_run=True).duplicate_events
    assert duplicates == {"events": (number,)}
    rows, version = DeltaTable(uri).count(), DeltaTable(uri).version()
    with pytest.raises(SetupError, match="a%20copy") as caught:
        repair.repair()
    assert "OPTIMIZE" in caught.value.rendered("fix")
    assert (DeltaTable(uri).count(), DeltaTable(uri).version()) == (rows, version)
    assert repair.repair(dry_run=True).duplicate_events == duplicates


def test_an_irreplaceable_file_of_another_pipeline_does_not_block_a_repair(lake: FileLake) -> None:
    """Only files of pipelines with duplicate events are replaced."""
    uri = uri_of(lake)
    copy_to_name_with_space(uri, "events", into="other")
    double(uri)
    repair = DeltaControlRepair(uri)
    assert list(repair.repair().duplicate_events) == ["events"]


# -- missing files -------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_read_reports_a_missing_file_with_its_path(
    lake: FileLake, read: Callable[[DeltaControlTable], object]
) -> None:
    file = remove_file(uri_of(lake), 2)
    version = DeltaTable(uri_of(lake)).version()
    with pytest.raises(ControlTableDamaged, match=" lacks 1 file") as caught:
        read(lake.control)
    missing = file.relative_to(uri_of(lake)).as_posix()
    assert caught.value.finding.endswith(f" lacks 1 file: {missing}.")
    assert DeltaTable(uri_of(lake)).version() == version


@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_repair_and_rebuild_fix_a_missing_control_file(lake: FileLake, number: int) -> None:
    """The steps are those of the runbook."""
    remove_file(uri_of(lake), number)
    with pytest.raises(ControlTableDamaged, match=" lacks 1 file"):
        lake.run(1)
    repair = DeltaControlRepair(uri_of(lake))
    assert len(repair.repair(dry_run=True).missing_files) == 1
    assert len(repair.repair().missing_files) == 1
    with pytest.raises(LedgerBehindTable, match="has no rows for"):
        lake.run(1)
    lake.repair.rebuild("ops", "a lost file")
    lake.run(2)
    assert lake.verified() == [(16, 16)]
    assert lake.control.ledger("prices").plans


def test_missing_files_are_logged_if_the_repair_then_fails(
    lake: FileLake, caplog: pytest.LogCaptureFixture
) -> None:
    """The repair has removed them from the log; its error is about other files."""
    uri = uri_of(lake)
    file = remove_file(uri, 1 if copy_to_name_with_space(uri, "events") > 1 else 2)
    with pytest.raises(SetupError, match="a%20copy"), caplog.at_level("WARNING"):
        DeltaControlRepair(uri).repair()
    assert file.name in caplog.text


# -- damaged files -------------------------------------------------------------------------------


def damage(uri: str, number: int) -> Path:
    """Overwrite the file of an event of `events` and return its path."""
    file = remove_file(uri, number)
    file.write_bytes(b"PAR1 is not a Parquet file PAR1")
    return file


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_read_reports_a_damaged_file(
    lake: FileLake, read: Callable[[DeltaControlTable], object]
) -> None:
    """The fix does not contain `undo`, because no plan can be undone without the table."""
    file = damage(uri_of(lake), 2)
    with pytest.raises(ControlTableDamaged, match=file.name) as caught:
        read(lake.control)
    assert "undo" not in str(caught.value)


def test_repair_and_rebuild_fix_a_damaged_control_file(lake: FileLake) -> None:
    """The steps are those of the runbook."""
    uri = uri_of(lake)
    file = damage(uri, 2)
    repair = DeltaControlRepair(uri)
    with pytest.raises(ControlTableDamaged, match=file.name):
        repair.repair()
    file.rename(lake.root / "aside")
    assert len(repair.repair().missing_files) == 1
    with pytest.raises(LedgerBehindTable, match="has no rows for"):
        lake.run(1)
    lake.repair.rebuild("ops", "a damaged file")
    lake.run(2)
    assert lake.verified() == [(15, 15)]


def test_a_repair_changes_nothing_while_a_file_is_damaged(lake: FileLake) -> None:
    uri = uri_of(lake)
    remove_file(uri, 8)
    file = damage(uri, 2)
    version = DeltaTable(uri).version()
    with pytest.raises(ControlTableDamaged, match=file.name):
        DeltaControlRepair(uri).repair()
    assert DeltaTable(uri).version() == version


def test_a_file_that_the_storage_refuses_is_not_reported_as_damaged(lake: FileLake) -> None:
    """A loop of links is a storage error, as missing access is."""
    file = remove_file(uri_of(lake), 2)
    file.symlink_to(file)
    with pytest.raises(StorageRefused):
        DeltaControlRepair(uri_of(lake)).repair(dry_run=True)
    with pytest.raises(StorageRefused):
        lake.control.summary("events")


# -- from the command line -----------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileLake:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path / "pipelines"))
    return home_lake(tmp_path)


def test_control_repair_counts_duplicates_in_a_dry_run_and_removes_them(home: FileLake) -> None:
    from tidemark.cli import app

    double(str(home.control_uri))
    run = CliRunner().invoke
    assert run(app, ["control", "repair"]).exit_code == 2
    draft = json.loads(run(app, ["control", "repair", "--dry-run", "--json"]).stdout)
    assert (draft["outcome"], list(draft["duplicate_events"])) == ("draft", ["events"])
    with pytest.raises(ControlTableDamaged, match="more than once"):
        home.control.ledger("events")
    done = json.loads(run(app, ["control", "repair", "--apply", "--json"]).stdout)
    assert done == {**draft, "outcome": "repaired"}
    assert "repaired" in run(app, ["control", "repair", "--apply"]).stdout
    home.run(1)
    assert home.verified() == [(10, 10)]


def test_maintenance_of_a_duplicated_control_table_is_refused(home: FileLake) -> None:
    """I7. The open plans are unknown."""
    double(str(home.control_uri))
    with pytest.raises(TidemarkError, match="control repair"):
        home.maintenance().maintain(WEEK)

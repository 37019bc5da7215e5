"""Storage that lets two processes commit one version is refused before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from arro3.core import Array, DataType, Field, Schema, Table
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from tests.fixtures_stores import PlaceIn
from tests.support.plans import append_events, make_plan
from tests.support.quality_reports import REPORT
from tests.support.services import NOW
from tests.support.stores import Store
from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.events import ControlEvent, Planned
from tidemark.lake import conditional_writes
from tidemark.lake.conditional_writes import PROOF_PREFIX
from tidemark.lake.control_table import DeltaControlTable
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.errors import ControlConflict, UnsafeStorage
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.publication import PublicationDecision, PublicationStatus
from tidemark.quality.publication_table import DeltaPublicationTable

WRITERS, APPENDS = 3, 15


def event() -> ControlEvent:
    """Any event."""
    return Planned(plan=make_plan((0, 0, 5)))


def record(control: DeltaControlTable, pipeline: str) -> None:
    """Record an event after what the table holds now."""
    append_events(control, pipeline, event())


def proofs(table: Path) -> list[int]:
    """The versions of a local table with commits that store a passed test of its storage."""
    return [
        int(commit.stem)
        for commit in sorted((table / "_delta_log").glob("*.json"))
        for line in commit.read_text().splitlines()
        if json.loads(line).get("txn", {}).get("appId", "").startswith(PROOF_PREFIX)
    ]


def stored(uri: str) -> list[str]:
    """All objects below a place, as delta-rs lists them."""
    found = PyFileSystem(DeltaStorageHandler(uri)).get_file_info(FileSelector("", recursive=True))
    return sorted(info.path for info in found if info.type == FileType.File)


def decided(uri: str) -> None:
    """Record a decision about a plan."""
    plan = make_plan((0, 0, 5))
    counts = (RangeCount(partition=0, start=0, end=5, records=5),)
    decision = PublicationDecision(plan=1, status=PublicationStatus.BLOCKED, decided_at=NOW)
    landing = Landing(sequence=1, table_version=1, counts=counts)
    DeltaPublicationTable(uri, f"{uri}-data").append(plan, landing, decision)


def checked(uri: str) -> None:
    """Record the results of a check."""
    DeltaCheckResults(uri).append(replace(REPORT, pipeline="events"))


# -- local folders -------------------------------------------------------------------------------


def test_a_folder_is_tried_before_the_first_commit_and_never_again(tmp_path: Path) -> None:
    """The table remembers it, for other processes as well, and the trial leaves no file."""
    place = tmp_path / "control"
    for _ in range(3):
        record(DeltaControlTable(str(place)), "events")
    assert proofs(place) == [0]
    assert {path.name for path in place.iterdir()} == {"_delta_log", "pipeline=events"}


def test_a_copied_control_table_is_tried_where_it_is_now(tmp_path: Path) -> None:
    """A passed test of another storage does not count for this one."""
    record(DeltaControlTable(str(tmp_path / "control")), "events")
    shutil.copytree(tmp_path / "control", tmp_path / "copy")
    for _ in range(2):
        record(DeltaControlTable(str(tmp_path / "copy")), "events")
    assert proofs(tmp_path / "copy") == [0, 2]
    # Renamed, so that the path is the one that passed and only the folder is another.
    (tmp_path / "control").rename(tmp_path / "old")
    (tmp_path / "copy").rename(tmp_path / "control")
    record(DeltaControlTable(str(tmp_path / "control")), "events")
    assert proofs(tmp_path / "control") == [0, 2, 4]


def test_a_new_inode_replaces_the_test_of_the_one_before(tmp_path: Path) -> None:
    """A table keeps one transaction for its location, even after many copies of the folder."""
    place, aside = tmp_path / "control", tmp_path / "aside"
    for copies in range(3):
        record(DeltaControlTable(str(place)), "events")
        assert len(proofs(place)) == copies + 1
        shutil.copytree(place, aside)
        place.rename(tmp_path / f"old-{copies}")
        aside.rename(place)
    DeltaTable(place).create_checkpoint()
    (checkpoint,) = (place / "_delta_log").glob("*.checkpoint.parquet")
    transactions = pq.read_table(checkpoint, columns=["txn"])["txn"].to_pylist()
    kept = [
        each["appId"] for each in transactions if each and each["appId"].startswith(PROOF_PREFIX)
    ]
    assert len(kept) == 1


@pytest.mark.parametrize("decide", [decided, checked])
def test_verdicts_and_check_results_are_tried_like_control_tables(
    tmp_path: Path, decide: Callable[[str], None]
) -> None:
    """A lost decision to block a plan would publish its rows."""
    place = tmp_path / "table"
    for _ in range(2):
        decide(str(place))
    assert proofs(place) == [0]
    shutil.copytree(place, tmp_path / "copy")
    decide(str(tmp_path / "copy"))
    assert proofs(tmp_path / "copy") == [0, 3]


def test_a_data_table_is_tried_when_it_is_made_and_where_a_copy_lands(tmp_path: Path) -> None:
    """A target may be outside the lakehouse, on another storage than the control table."""
    DeltaDataTable(str(tmp_path / "table")).prepare("events")
    assert proofs(tmp_path / "table") == [0]
    DeltaDataTable(str(tmp_path / "table")).append(make_plan((0, 0, 5)), [])
    assert proofs(tmp_path / "table") == [0]
    shutil.copytree(tmp_path / "table", tmp_path / "copy")
    DeltaDataTable(str(tmp_path / "copy")).append(make_plan((0, 5, 9), sequence=2), [])
    assert proofs(tmp_path / "copy") == [0, 2]


# -- the process of the test -----------------------------------------------------------------------


def test_output_of_other_code_does_not_change_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports `sitecustomize` in every process; some hosts print there."""
    (tmp_path / "sitecustomize.py").write_text("print('welcome', end='')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert conditional_writes._commits_apart(str(tmp_path / "trial"))


def test_modules_in_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script of the user may have the name of a library."""
    for name in ("deltalake", "arro3"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('wrong module')")
    monkeypatch.chdir(tmp_path)
    assert conditional_writes._commits_apart(str(tmp_path / "trial"))


def test_a_process_without_a_result_is_an_error_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a storage that never answers nor other output proves unsafe storage."""
    with monkeypatch.context() as patched:
        patched.setattr(conditional_writes, "_LONGEST_S", 0.001)
        with pytest.raises(TimeoutError):
            conditional_writes._commits_apart(str(tmp_path / "trial"))
    (tmp_path / "sitecustomize.py").write_text("import atexit; atexit.register(print, 'goodbye')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OSError, match="goodbye"):
        conditional_writes._commits_apart(str(tmp_path / "trial"))


# -- object stores -------------------------------------------------------------------------------


def refuse_control(place: str) -> None:
    """Record in a control table."""
    record(DeltaControlTable(f"{place}/table"), "events")


def refuse_data(place: str) -> None:
    """Prepare a data table."""
    DeltaDataTable(f"{place}/table").prepare("events")


def refuse_decision(place: str) -> None:
    """Record a decision."""
    decided(f"{place}/table")


def refuse_result(place: str) -> None:
    """Record the results of a check."""
    checked(f"{place}/table")


@pytest.mark.store
@pytest.mark.parametrize("write", [refuse_control, refuse_data, refuse_decision, refuse_result])
def test_a_store_that_ignores_conditional_writes_is_refused(
    ignoring: Store, place_in: PlaceIn, write: Callable[[str], None]
) -> None:
    """The error names the location, and no table is there afterwards."""
    place = place_in(ignoring)
    with pytest.raises(UnsafeStorage, match=f"{place}/table is unsafe"):
        write(place)
    assert stored(place) == []


@pytest.mark.store
def test_a_store_whose_condition_is_turned_off_is_refused(
    honouring: Store, place_in: PlaceIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs has an option for it."""
    place = place_in(honouring)
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(UnsafeStorage, match="conditional put is disabled"):
        refuse_control(place)
    assert stored(place) == []


@pytest.mark.store
def test_a_store_that_honours_conditional_writes_keeps_every_acknowledged_event(
    honouring: Store, place_in: PlaceIn
) -> None:
    """Three writers append at the same time, and the trial leaves no object."""
    place = place_in(honouring)
    names = [f"events_{number}" for number in range(WRITERS)]

    def write(name: str) -> None:
        control = DeltaControlTable(place)
        for _ in range(APPENDS):
            recorded = False
            while not recorded:
                try:
                    record(control, name)
                    recorded = True
                except ControlConflict:
                    continue

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, names))
    control = DeltaControlTable(place)
    assert {name: control.ledger(name).event_number for name in names} == dict.fromkeys(
        names, APPENDS
    )
    rows = DeltaTable(place).count()
    assert rows == WRITERS * APPENDS
    assert {path.partition("/")[0] for path in stored(place)} == {
        "_delta_log",
        *(f"pipeline={name}" for name in names),
    }


@pytest.mark.store
def test_a_control_table_that_moved_to_another_server_is_tried_there(
    honouring: Store, ignoring: Store, place_in: PlaceIn
) -> None:
    """Bucket and path are the same, and the copy has the transaction of the server that passed."""
    place = place_in(honouring)
    refuse_control(place)
    objects = PyFileSystem(DeltaStorageHandler(place))
    copied = {}
    for path in stored(place):
        with objects.open_input_file(path) as source:
            copied[path] = source.read()
    assert place_in(ignoring) == place
    for path, content in copied.items():
        ignoring.put(f"{place}/{path}", content)
    with pytest.raises(UnsafeStorage):
        refuse_control(place)
    assert stored(place) == sorted(copied)


@pytest.mark.store
def test_without_the_trial_the_ignoring_store_loses_acknowledged_commits(
    ignoring: Store, place_in: PlaceIn
) -> None:
    """The refusal is about real losses: delta-rs acknowledges more appends than there are rows."""
    place = place_in(ignoring)
    columns = Schema([Field("value", DataType.int64())])
    DeltaTable.create(place, schema=columns)

    def write(writer: int) -> int:
        acknowledged = 0
        for _ in range(APPENDS):
            row = Table.from_arrays([Array([writer], type=DataType.int64())], schema=columns)
            # This store may return half of a commit that another writer is replacing.
            with suppress(DeltaError):
                write_deltalake(place, row, mode="append")
                acknowledged += 1
        return acknowledged

    with ThreadPoolExecutor(WRITERS) as threads:
        acknowledged = sum(threads.map(write, range(WRITERS)))
    rows = DeltaTable(place).count()
    assert rows < acknowledged

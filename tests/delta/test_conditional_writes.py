"""Tests that storage on which two processes can commit one version is refused."""

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
from tests.support.plans import UNCOMPARED, append_events, make_plan
from tests.support.quality_reports import REPORT
from tests.support.stores import Store
from tidemark.core.events import ControlEvent, Planned
from tidemark.delta import conditional_writes
from tidemark.delta.conditional_writes import PROOF_PREFIX
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import ControlConflict, UnsafeStorage
from tidemark.quality.check_results_table import DeltaCheckResults

WRITERS, APPENDS = 3, 15


def event() -> ControlEvent:
    return Planned(plan=make_plan((0, 0, 5)))


def append_event(control: DeltaControlTable, pipeline: str) -> None:
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
    """Return all objects below a location, as delta-rs lists them."""
    found = PyFileSystem(DeltaStorageHandler(uri)).get_file_info(FileSelector("", recursive=True))
    return sorted(info.path for info in found if info.type == FileType.File)


def record_results(uri: str) -> None:
    DeltaCheckResults(uri).append(replace(REPORT, pipeline="events"))


# -- local folders -------------------------------------------------------------------------------


def test_a_folder_is_tested_once_before_the_first_commit(tmp_path: Path) -> None:
    """The table stores the result, and the test leaves no file."""
    place = tmp_path / "control"
    for _ in range(3):
        append_event(DeltaControlTable(str(place)), "events")
    assert proofs(place) == [0]
    assert {path.name for path in place.iterdir()} == {"_delta_log", "pipeline=events"}


def test_a_copied_control_table_is_tested_at_its_new_location(tmp_path: Path) -> None:
    append_event(DeltaControlTable(str(tmp_path / "control")), "events")
    shutil.copytree(tmp_path / "control", tmp_path / "copy")
    for _ in range(2):
        append_event(DeltaControlTable(str(tmp_path / "copy")), "events")
    assert proofs(tmp_path / "copy") == [0, 2]
    # After renaming, the path has passed the test, but its folder has not.
    (tmp_path / "control").rename(tmp_path / "old")
    (tmp_path / "copy").rename(tmp_path / "control")
    append_event(DeltaControlTable(str(tmp_path / "control")), "events")
    assert proofs(tmp_path / "control") == [0, 2, 4]


def test_a_table_stores_one_test_result_even_after_many_copies(tmp_path: Path) -> None:
    place, aside = tmp_path / "control", tmp_path / "aside"
    for copies in range(3):
        append_event(DeltaControlTable(str(place)), "events")
        assert len(proofs(place)) == copies + 1
        shutil.copytree(place, aside)
        place.rename(tmp_path / f"old-{copies}")
        aside.rename(place)
    DeltaTable(place).create_checkpoint()
    (checkpoint,) = (place / "_delta_log").glob("*.checkpoint.parquet")
    transactions = pq.read_table(checkpoint, columns=["txn"])["txn"].to_pylist()
    results = [
        each["appId"] for each in transactions if each and each["appId"].startswith(PROOF_PREFIX)
    ]
    assert len(results) == 1


def test_storage_of_check_results_is_tested_like_control_tables(tmp_path: Path) -> None:
    place = tmp_path / "table"
    for _ in range(2):
        record_results(str(place))
    assert proofs(place) == [0]
    shutil.copytree(place, tmp_path / "copy")
    record_results(str(tmp_path / "copy"))
    assert proofs(tmp_path / "copy") == [0, 3]


def test_the_storage_of_a_data_table_is_tested_at_creation_and_after_a_copy(tmp_path: Path) -> None:
    """A data table may be on another storage than the control table."""
    DeltaDataTable(str(tmp_path / "table")).prepare("events")
    assert proofs(tmp_path / "table") == [0]
    DeltaDataTable(str(tmp_path / "table")).append(make_plan((0, 0, 5)), [], UNCOMPARED)
    assert proofs(tmp_path / "table") == [0]
    shutil.copytree(tmp_path / "table", tmp_path / "copy")
    DeltaDataTable(str(tmp_path / "copy")).append(make_plan((0, 5, 9), sequence=2), [], UNCOMPARED)
    assert proofs(tmp_path / "copy") == [0, 2]


# -- the process of the test -----------------------------------------------------------------------


def test_output_of_other_code_does_not_change_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports `sitecustomize` in every process."""
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


def test_a_storage_test_without_a_result_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout or foreign output does not prove that the storage is unsafe."""
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
    append_event(DeltaControlTable(f"{place}/table"), "events")


def refuse_data(place: str) -> None:
    DeltaDataTable(f"{place}/table").prepare("events")


def refuse_result(place: str) -> None:
    record_results(f"{place}/table")


@pytest.mark.store
@pytest.mark.parametrize("write", [refuse_control, refuse_data, refuse_result])
def test_a_store_that_ignores_conditional_writes_is_refused(
    unconditional_store: Store, place_in: PlaceIn, write: Callable[[str], None]
) -> None:
    place = place_in(unconditional_store)
    with pytest.raises(UnsafeStorage, match=f"{place}/table is unsafe"):
        write(place)
    assert stored(place) == []


@pytest.mark.store
def test_a_store_whose_condition_is_turned_off_is_refused(
    conditional_store: Store, place_in: PlaceIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs has an option that disables conditional writes."""
    place = place_in(conditional_store)
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(UnsafeStorage, match="conditional put is disabled"):
        refuse_control(place)
    assert stored(place) == []


@pytest.mark.store
def test_a_store_that_honours_conditional_writes_keeps_every_acknowledged_event(
    conditional_store: Store, place_in: PlaceIn
) -> None:
    """Three writers append at the same time."""
    place = place_in(conditional_store)
    names = [f"events_{number}" for number in range(WRITERS)]

    def write(name: str) -> None:
        control = DeltaControlTable(place)
        for _ in range(APPENDS):
            recorded = False
            while not recorded:
                try:
                    append_event(control, name)
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
def test_a_control_table_that_moved_to_another_server_is_tested_there(
    conditional_store: Store, unconditional_store: Store, place_in: PlaceIn
) -> None:
    """The copy has the same bucket and path, and the result of the first server's test."""
    place = place_in(conditional_store)
    refuse_control(place)
    objects = PyFileSystem(DeltaStorageHandler(place))
    copied = {}
    for path in stored(place):
        with objects.open_input_file(path) as source:
            copied[path] = source.read()
    assert place_in(unconditional_store) == place
    for path, content in copied.items():
        unconditional_store.put(f"{place}/{path}", content)
    with pytest.raises(UnsafeStorage):
        refuse_control(place)
    assert stored(place) == sorted(copied)


@pytest.mark.store
def test_a_store_without_conditional_writes_loses_acknowledged_commits(
    unconditional_store: Store, place_in: PlaceIn
) -> None:
    """This shows that the refusal prevents real losses."""
    place = place_in(unconditional_store)
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

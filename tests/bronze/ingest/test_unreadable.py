"""Tests of tables with a damaged file: the error names the file, and its plan can be undone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.file_lake import WEEK, FileLake
from tests.support.file_merger import FileMerger
from tests.support.services import with_ports
from tests.support.typed_lake import TypedLake
from tests.support.upsert_lake import UpsertLake
from tests.support.zombies import Killed, PortWithStep, kill
from tidemark.bronze.repair.errors import UndoUnfinished
from tidemark.delta.errors import UnreadableFile
from tidemark.delta.live_files import live_files
from tidemark.delta.unreadable_files import check_readable
from tidemark.ops.maintenance.rules import MaintenanceOutcome

pytestmark = pytest.mark.slow

Damage = Callable[[Path], None]


def truncate(file: Path) -> None:
    """Truncate a file, as a full disk does."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def with_broken_text(file: Path) -> None:
    """Write bytes that are not UTF-8 to a text column; Parquet does not check them."""
    table = pq.read_table(file)
    column = next(
        n for n, each in enumerate(table.schema) if each.name in ("value", "topic")
        and each.type == pa.string()
    )  # fmt: skip
    broken = pa.array([b"\xff\xfe"] * table.num_rows).view(pa.string())
    pq.write_table(table.set_column(column, table.schema.field(column), broken), file)


def damaged_column(name: str) -> Damage:
    """Return a function that overwrites the values of one column; the footer stays right."""

    def damage(file: Path) -> None:
        footer, content = pq.read_metadata(file), bytearray(file.read_bytes())
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.path_in_schema.split(".")[0] == name:
                    begin = chunk.dictionary_page_offset or chunk.data_page_offset
                    end = begin + chunk.total_compressed_size
                    content[begin:end] = b"Z" * chunk.total_compressed_size
        file.write_bytes(content)

    return damage


def files(uri: Path) -> list[Path]:
    """Return the files of the newest version, oldest first."""
    actions = pa.table(DeltaTable(uri).get_add_actions()).sort_by("modification_time")
    return [uri / path for path in actions["path"].to_pylist()]


def check_files(uri: Path) -> None:
    """Read all files of the newest version."""
    check_readable(str(uri), live_files(DeltaTable(uri)))


@pytest.fixture(params=[truncate, with_broken_text, Path.unlink], ids=["cut", "text", "missing"])
def damage(request: pytest.FixtureRequest) -> Damage:
    function: Damage = request.param
    return function


def test_the_plan_of_a_damaged_file_is_undone_and_lands_again(
    tmp_path: Path, damage: Damage
) -> None:
    lake = FileLake(tmp_path)
    for _ in range(3):
        lake.run(4)
    broken = files(lake.uri)[1]
    damage(broken)
    for command in (lake.verified, lambda: lake.maintenance().maintain(WEEK)):
        with pytest.raises(UnreadableFile, match=f"{broken.name}.*plan 2 only") as caught:
            command()
        assert "rows of plan 2 only" in caught.value.repair
    assert lake.undo.undo(2, "test", "a damaged file").rows == 4
    assert lake.rows() == [(0, offset) for offset in (0, 1, 2, 3, 8, 9, 10, 11)]
    lake.run(1)
    assert lake.verified()[0] == (13, 13)
    assert lake.maintenance().maintain(WEEK).outcome is MaintenanceOutcome.MAINTAINED
    assert lake.verified()[0] == (13, 13)


def test_the_fix_of_a_damaged_file_names_the_pipeline_of_its_table(
    tmp_path: Path, damage: Damage
) -> None:
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    fixes = {lake.bronze.uri: "undo events --plan 1 ", lake.typed_uri: "decode events --from-"}
    for uri, fix in fixes.items():
        damage(files(uri)[0])
        with pytest.raises(UnreadableFile, match=f"`tidemark {fix}"):
            check_files(uri)


def test_no_undo_and_no_rewind_fixes_a_damaged_file_of_another_table(
    tmp_path: Path, damage: Damage
) -> None:
    """The rows of upsert tables have plan numbers, too."""
    lake = UpsertLake(tmp_path)
    lake.land_records(("k", "v"))
    lake.run()
    lake.upserts.execute(FileMerger(lake))
    damage(files(lake.upsert_uri)[0])
    with pytest.raises(UnreadableFile, match="runbook's step") as caught:
        check_files(lake.upsert_uri)
    assert "tidemark" not in caught.value.rendered("fix")


def test_an_undo_that_has_to_rewrite_a_damaged_file_records_nothing(tmp_path: Path) -> None:
    """Compaction put rows of several plans into the file; RESTORE and rewind fix it."""
    lake = FileLake(tmp_path)
    for _ in range(2):
        lake.run(4)
    before = DeltaTable(lake.uri).version()
    lake.maintenance().maintain(WEEK)
    lake.run(3)
    truncate(files(lake.uri)[0])
    recorded = lake.control.ledger("events").event_number
    with pytest.raises(UnreadableFile, match="RESTORE") as caught:
        lake.undo.undo(1, "test", "a mistake")
    assert "rows of several plans" in caught.value.repair
    assert lake.control.ledger("events").event_number == recorded
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("test", "a damaged file")
    lake.run(1)
    assert lake.verified()[0] == (12, 12)
    lake.undo.undo(1, "test", "a mistake")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_replacement_that_has_to_rewrite_a_damaged_file_names_the_file(
    tmp_path: Path, is_compacted: bool
) -> None:
    """Only the rewriting reads the damaged column, which also has values of rows that stay."""
    lake = FileLake(tmp_path)
    for _ in range(3):
        lake.run(3)
    if is_compacted:
        lake.maintenance().maintain(WEEK)
    plan = lake.plan_replacing((0, 4, 5))
    broken = files(lake.uri)[0 if is_compacted else 1]
    version = DeltaTable(lake.uri).version()
    damaged_column("ingested_at")(broken)
    with pytest.raises(UnreadableFile, match=broken.name):
        lake.ingest.execute(plan.sequence)
    assert DeltaTable(lake.uri).version() == version
    if is_compacted:
        return
    # The fix of the error.
    lake.undo.undo(2, "test", "a damaged file")
    lake.ingest.execute(plan.sequence)
    lake.run(1)
    assert lake.verified()[0] == (10, 10)


@pytest.mark.parametrize(
    ("table", "column"), [("typed_uri", "value"), ("quarantine_uri", "plan_sequence")]
)
def test_a_damaged_file_of_a_typed_table_or_a_quarantine_is_named_and_repaired(
    tmp_path: Path, table: str, column: str
) -> None:
    """The bronze plan that the decode follows has replaced some of the rows in the file."""
    lake = TypedLake(tmp_path, broken=[1])
    for _ in range(2):
        lake.bronze.run(3)
        lake.run()
    lake.bronze.land_again((0, 0, 2))
    uri = getattr(lake, table)
    broken = files(uri)[0]
    damaged_column(column)(broken)
    with pytest.raises(UnreadableFile, match=broken.name):
        lake.run()
    # Both fixes of the error.
    copy = lake.copied(tmp_path / "copy")
    DeltaTable(uri).restore(0)
    lake.run()
    lake.check()
    if table == "typed_uri":
        copy.decodes.from_scratch("ops", "a damaged file")
    else:
        shutil.rmtree(copy.quarantine_uri)
    copy.run()
    copy.check()


def test_undo_counts_rows_of_rewritten_and_removed_files_once(tmp_path: Path) -> None:
    lake = FileLake(tmp_path)
    lake.run(4)
    lake.run(4)
    lake.maintenance().maintain(WEEK)
    lake.land_again((0, 2, 6))
    undone = lake.undo.undo(3, "test", "a mistake")
    assert undone.rows == 4
    assert lake.undo.undo(1, "test", "a mistake").rows == 2
    assert lake.rows() == [(0, 6), (0, 7)]
    lake.run(1)
    assert lake.verified()[0] == (9, 9)


def test_rows_of_a_plan_that_is_being_undone_are_not_verified(tmp_path: Path) -> None:
    lake = FileLake(tmp_path)
    lake.run(2)
    lake.run(2)
    with pytest.raises(Killed):
        with_ports(lake.undo, table=PortWithStep(lake.table, "remove_rows", before=kill)).undo(
            2, "test", "stopped here"
        )
    with pytest.raises(UndoUnfinished):
        lake.verify.verify()
    lake.undo.undo(2, "test", "again")
    assert lake.verified()[0] == (2, 2)

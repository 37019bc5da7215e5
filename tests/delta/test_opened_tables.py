"""Tests of tables that are opened once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree

from deltalake import DeltaTable

from tests.support.file_lake import FileLake
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.opened_tables import reopen_tables, tables_opened_once
from tidemark.delta.table_io import open_if_exists


def version(uri: str) -> int | None:
    table = open_if_exists(uri)
    return None if table is None else table.version()


def test_a_block_reads_the_first_state_of_a_table_until_tables_are_reopened(tmp_path: Path) -> None:
    lake = FileLake(root=tmp_path)
    uri = str(lake.uri)
    with ThreadPoolExecutor(1) as other, tables_opened_once():
        assert version(uri) is None
        other.submit(lake.run, 4).result()
        newest = DeltaTable(uri).version()
        assert version(uri) is None
        assert other.submit(version, uri).result() == newest
        reopen_tables()
        assert version(uri) == newest
        other.submit(lake.run, 4).result()
        assert version(uri) == newest
        reopen_tables()
        assert version(uri) == DeltaTable(uri).version()
    rmtree(uri)
    assert version(uri) is None


def test_a_table_that_another_process_creates_in_a_block_is_no_foreign_table(
    tmp_path: Path,
) -> None:
    lake = FileLake(root=tmp_path)
    table = DeltaDataTable(str(lake.uri))
    with ThreadPoolExecutor(1) as other, tables_opened_once():
        missing = table.state("events", ())
        other.submit(lake.run, 4).result()
        assert table.state("events", ()) == missing
        reopen_tables()
        assert table.state("events", ()).version == DeltaTable(str(lake.uri)).version()

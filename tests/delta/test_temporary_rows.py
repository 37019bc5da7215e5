"""Tests of rows in temporary files: nothing remains, and errors name the folder."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.delta.errors import StorageRefused
from tidemark.delta.replacement import spooled_reader

SCHEMA = pa.schema([("value", pa.binary())])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def small_files() -> Iterator[None]:
    """Refuse files of more than a megabyte to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def batches() -> Iterator[pa.RecordBatch]:
    for _ in range(20):
        yield pa.record_batch([pa.array([os.urandom(100_000)], pa.binary())], SCHEMA)


def test_the_temporary_file_has_no_name_while_it_contains_rows(folder: Path) -> None:
    """A killed process leaves no records in the folder."""
    names: list[str] = []

    def observed() -> Iterator[pa.RecordBatch]:
        for batch in batches():
            names.extend(os.listdir(folder))
            yield batch

    with spooled_reader(observed(), SCHEMA) as rows:
        names.extend(os.listdir(folder))
        assert rows.read_all().num_rows == 20
    assert names == []


@pytest.mark.usefixtures("small_files")
def test_a_failed_write_of_temporary_rows_raises_storage_refused(folder: Path) -> None:
    with (
        pytest.raises(StorageRefused, match=f"writing temporary rows at {folder}"),
        spooled_reader(batches(), SCHEMA),
    ):
        pass
    assert list(folder.iterdir()) == []


def test_a_failed_read_of_the_rows_is_not_an_error_of_the_temporary_folder() -> None:
    """The rows come from the storage of a table."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches()
        raise PermissionError(13, "Permission denied")

    with pytest.raises(PermissionError), spooled_reader(failing(), SCHEMA):
        pass

"""Tests of tables on a full disk: undo and maintenance recover once there is space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.disks import mounted
from tests.support.file_lake import LATER, WEEK, FileLake, age
from tidemark.delta.errors import StorageUnavailable
from tidemark.ops.maintenance.rules import MaintenanceOutcome

VALUE_BYTES = 200_000
LOG_BYTES = 100_000
"""More than the commits and checkpoints of a test."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[FileLake]:
    """A pipeline with six landed plans of incompressible records, on a small disk."""
    with mounted(tmp_path / "disk", "size=8m") as disk:
        pipeline = FileLake(disk)
        chance = Random(1)
        for _ in range(6):
            pipeline.land_payloads([(None, chance.randbytes(VALUE_BYTES))])
        yield pipeline


def leave_free(lake: FileLake, size: int) -> None:
    """Fill the disk with a file of another program, up to a free size in bytes."""
    filler = lake.root / "filler"
    filler.unlink(missing_ok=True)
    disk = os.statvfs(lake.root)
    filler.write_bytes(bytes(disk.f_bavail * disk.f_bsize - size))


def rows_files(lake: FileLake) -> set[str]:
    """Return the files with rows, also those that no version refers to."""
    return {each for each in lake.stored() if "_delta_log" not in each}


@pytest.mark.slow
def test_undo_in_compacted_files_recovers_from_a_full_disk(lake: FileLake) -> None:
    """The error contains the space that the undo needs. The failed attempt leaves no file."""
    lake.maintenance().maintain(WEEK)
    before, rows = rows_files(lake), lake.rows()
    leave_free(lake, LOG_BYTES)
    for _ in range(3):
        with pytest.raises(StorageUnavailable, match="No space left on device") as full:
            lake.undo.undo(2, "ops", "wrong")
        assert rows_files(lake) == before
        assert lake.rows() == rows
    assert full.value.bytes_needed is not None
    assert 6 * VALUE_BYTES < full.value.bytes_needed < 7 * VALUE_BYTES
    assert f"Free {full.value.bytes_needed:,} bytes" in full.value.rendered("fix")
    leave_free(lake, full.value.bytes_needed + LOG_BYTES)
    assert lake.undo.undo(2, "ops", "wrong").rows == 1
    assert lake.rows() == [row for row in rows if row != (0, 1)]


@pytest.mark.slow
def test_an_undo_of_own_files_needs_no_space_for_rows(lake: FileLake) -> None:
    leave_free(lake, LOG_BYTES)
    assert lake.undo.undo(2, "ops", "wrong").rows == 1


@pytest.mark.slow
@pytest.mark.parametrize("groups_with_space", [0, 1])
def test_maintenance_recovers_from_a_full_disk(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch, groups_with_space: int
) -> None:
    """There is space for some of the compacted files; the failed attempt leaves none of them."""
    monkeypatch.setattr("tidemark.delta.compaction.TARGET_BYTES", 700_000)
    before, rows = rows_files(lake), lake.rows()
    leave_free(lake, groups_with_space * 3 * VALUE_BYTES + LOG_BYTES)
    for _ in range(3):
        with pytest.raises(StorageUnavailable, match="No space left on device") as full:
            lake.maintenance().maintain(WEEK)
        assert rows_files(lake) == before
    assert full.value.bytes_needed is not None
    leave_free(lake, full.value.bytes_needed + LOG_BYTES)
    assert lake.maintenance().maintain(WEEK).replaced == 6
    assert lake.rows() == rows


@pytest.mark.slow
def test_maintenance_compacts_in_the_space_of_the_files_that_it_removes(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that the first maintenance replaced are older than the retention."""
    lake.maintenance().maintain(WEEK)
    monkeypatch.setattr("tidemark.delta.compaction.TARGET_BYTES", 700_000)
    for seed in (2, 3):
        lake.land_payloads([(None, Random(seed).randbytes(VALUE_BYTES))])
    rows = lake.rows()
    age(lake.uri)
    leave_free(lake, LOG_BYTES)
    done = lake.maintenance(LATER).maintain(WEEK)
    assert (done.outcome, done.replaced) == (MaintenanceOutcome.MAINTAINED, 2)
    assert len(done.removed) >= 6
    assert lake.rows() == rows


@pytest.mark.slow
def test_a_compaction_that_cannot_be_committed_leaves_no_file(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has space for the compacted file alone."""

    def full(*_: object) -> int:
        raise OSError("No space left on device (os error 28)")

    monkeypatch.setattr("tidemark.delta.compaction.commit_checked", full)
    before = rows_files(lake)
    with pytest.raises(StorageUnavailable):
        lake.maintenance().maintain(WEEK)
    assert rows_files(lake) == before

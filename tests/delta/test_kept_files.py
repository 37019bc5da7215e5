"""Tests of the files that later processes use instead of reading an object store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemark.delta import kept_files
from tidemark.delta.kept_files import KeptFiles, keep_files_in, kept_files_of

URI = "s3://lake/bronze/prices"
CHECKPOINT = f"{20:020}.checkpoint.parquet"


def commit(version: int) -> str:
    return f"{version:020}.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "log_copies"


@pytest.fixture
def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "_kept_in", None)
    monkeypatch.setattr(kept_files, "_tidied", set())


def stored(folder: Path) -> Path:
    (file,) = (each for each in folder.rglob("*") if each.is_file())
    return file


def test_a_later_process_finds_a_file_by_its_table_and_name_and_tag(folder: Path) -> None:
    KeptFiles(folder, URI).write(commit(1), "tag", b"content")
    assert KeptFiles(folder, URI).read(commit(1), "tag") == b"content"
    assert KeptFiles(folder, URI).read(commit(2), "tag") is None
    assert KeptFiles(folder, URI).read(commit(1), "other") is None
    assert KeptFiles(folder, f"{URI}2").read(commit(1), "tag") is None


def test_no_other_user_can_read_the_files(folder: Path) -> None:
    KeptFiles(folder, URI).write(commit(1), "tag", b"content")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_no_other_user_can_read_the_files_in_a_folder_that_exists(folder: Path) -> None:
    """For example a volume of a container."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    KeptFiles(folder, URI).write(commit(1), "tag", b"content")
    assert stored(folder).stat().st_mode & 0o777 == 0o600
    assert stored(folder).parent.stat().st_mode & 0o777 == 0o700


def test_files_that_another_user_may_have_written_are_not_read(
    folder: Path, no_folder: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_files_in(folder)
    kept = KeptFiles(folder, URI)
    assert kept_files_of(URI) is not None
    kept._folder.chmod(0o770)
    assert kept_files_of(URI) is None
    kept._folder.chmod(0o700)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert kept_files_of(URI) is None


def test_a_full_disk_leaves_no_part_of_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(part: Path, _: bytes) -> None:
        with part.open("wb") as file:
            file.write(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fill)
    KeptFiles(folder, URI).write(commit(1), "tag", b"content")
    assert not [each for each in folder.rglob("*") if each.is_file()]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:0],
        lambda content: content[:-1],
        lambda content: content[:32],
        lambda content: content[:-1] + b"X",
        lambda content: b"X" + content[1:],
    ],
    ids=["empty", "cut", "digest only", "altered", "altered digest"],
)
def test_a_damaged_file_counts_as_missing(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    kept = KeptFiles(folder, URI)
    kept.write(commit(1), "tag", b"content")
    file = stored(folder)
    file.write_bytes(damage(file.read_bytes()))
    assert kept.read(commit(1), "tag") is None


def test_the_newest_checkpoint_is_found_among_commits(folder: Path) -> None:
    kept = KeptFiles(folder, URI)
    kept.write(commit(0), "tag", b"")
    assert kept.newest_checkpoint() is None
    for name in (CHECKPOINT, f"{10:020}.checkpoint.parquet", commit(21)):
        kept.write(name, "tag", b"")
    assert kept.newest_checkpoint() == 20


def test_older_files_of_the_log_and_removed_data_files_are_removed(folder: Path) -> None:
    kept = KeptFiles(folder, URI)
    for name in (commit(19), commit(20), CHECKPOINT, commit(21)):
        kept.write(name, "tag", b"log")
    for name in (commit(20), CHECKPOINT):
        kept.write(name, "of another table", b"log")
    for name in ("data-0", commit(19), commit(20)):
        # A process was killed during the write.
        (kept._folder / f".{name}.0c5d").touch()
    for path in ("pipeline=a/1.parquet", "pipeline=a/2.parquet"):
        kept.write_data(path, b"data")
    kept.remove_other_logs({commit(20): "tag", CHECKPOINT: "tag"})
    kept.remove_other_data(["pipeline=a/2.parquet"])
    assert len(list(kept._folder.iterdir())) == 4
    assert kept.read(commit(21), "tag") == b"log"
    assert kept.read(commit(20), "tag") == kept.read(CHECKPOINT, "tag") == b"log"
    assert kept.read_data("pipeline=a/1.parquet") is None
    assert kept.read_data("pipeline=a/2.parquet") == b"data"


def test_a_folder_that_cannot_be_used_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    kept = KeptFiles(tmp_path / "home" / "log_copies", URI)
    kept.write(commit(1), "tag", b"content")
    kept.remove_other_logs({commit(2): "tag"})
    assert not kept.is_safe()
    assert kept.read(commit(1), "tag") is None
    assert kept.newest_checkpoint() is None


def test_files_that_have_not_changed_for_40_days_are_removed(folder: Path, no_folder: None) -> None:
    assert kept_files_of(URI) is None
    for uri in (URI, f"{URI}2"):
        KeptFiles(folder, uri).write(commit(1), "tag", b"content")
    long_ago = folder.stat().st_mtime - 40 * 86_400
    os.utime(KeptFiles(folder, URI)._folder, (long_ago, long_ago))
    keep_files_in(folder)
    found = kept_files_of(URI), kept_files_of(f"{URI}2")
    assert [kept and kept.read(commit(1), "tag") for kept in found] == [None, b"content"]

"""Files of tables in object stores, kept on this machine for later processes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from time import time

from tidemark.delta.log_folders import LOG_FILE, PART, version_of, write_whole

_DIGEST_BYTES = 32
_UNUSED_S = 30 * 24 * 60 * 60
"""Seconds without a change of a table's kept files, after which all of these files are removed."""
_DATA = "data-"


class KeptFiles:
    """Kept files of one table. A damaged file counts as missing, and a failed write is no error.

    The name of a kept file of a log contains the file's entity tag. So a file of an earlier table
    at the same location is not found.

    Args:
        folder: The folder of all tables. Only this user can read the files.
        uri: The table.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        self._folder = folder / _digest(uri)
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)

    def is_safe(self) -> bool:
        """Whether no other user can have written the files."""
        try:
            found = self._folder.stat()
        except OSError:
            return False
        return found.st_uid == os.geteuid() and not found.st_mode & 0o022

    def newest_checkpoint(self) -> int | None:
        """Return the version of the newest checkpoint; None without one."""
        names = (name for name in self._names() if LOG_FILE.match(name))
        return max((version_of(name) for name in names if ".checkpoint." in name), default=None)

    def read(self, name: str, tag: str) -> bytes | None:
        """Return a file of the log; None if it is missing or damaged."""
        return self._read(_log_name(name, tag))

    def write(self, name: str, tag: str, content: bytes) -> None:
        """Keep a file of the log."""
        self._write(_log_name(name, tag), content)

    def read_data(self, path: str) -> bytes | None:
        """Return a data file; None if it is missing or damaged. No other file has its path."""
        return self._read(_data_name(path))

    def write_data(self, path: str, content: bytes) -> None:
        """Keep a data file."""
        self._write(_data_name(path), content)

    def remove_other_logs(self, tags: Mapping[str, str]) -> None:
        """Remove files of the log that are not in `tags`, except those of later versions.

        They are before the newest checkpoint, of a replaced table, or of a killed process.
        """
        kept, newest = {_log_name(*each) for each in tags.items()}, max(map(version_of, tags))
        self._remove(
            name
            for name in self._names()
            if LOG_FILE.match(name.removeprefix(PART))
            and version_of(name.removeprefix(PART)) <= newest
            and name not in kept
        )

    def remove_other_data(self, paths: Collection[str]) -> None:
        """Remove the data files that are not in `paths`."""
        kept = set(map(_data_name, paths))
        self._remove(
            name
            for name in self._names()
            if name.removeprefix(PART).startswith(_DATA) and name not in kept
        )

    def _read(self, name: str) -> bytes | None:
        try:
            stored = (self._folder / name).read_bytes()
        except OSError:
            return None
        content = stored[_DIGEST_BYTES:]
        # fence: damaged-kept-file-is-missing
        if sha256(content).digest() != stored[:_DIGEST_BYTES]:
            return None
        return content

    def _write(self, name: str, content: bytes) -> None:
        with suppress(OSError):
            write_whole(self._folder / name, sha256(content).digest() + content)

    def _names(self) -> list[str]:
        try:
            return [each.name for each in self._folder.iterdir()]
        except OSError:
            return []

    def _remove(self, names: Iterator[str]) -> None:
        with suppress(OSError):
            for name in names:
                (self._folder / name).unlink(missing_ok=True)


def keep_files_in(folder: Path) -> None:
    """Keep files of tables in a folder, for later processes."""
    global _kept_in
    _kept_in = folder


def kept_files_of(uri: str) -> KeptFiles | None:
    """Return the kept files of a table; None if there is no folder that only this user writes."""
    if _kept_in is None:
        return None
    if _kept_in not in _tidied:
        _tidied.add(_kept_in)
        _remove_unused(_kept_in)
    kept = KeptFiles(_kept_in, uri)
    return kept if kept.is_safe() else None


_kept_in: Path | None = None
_tidied: set[Path] = set()
"""Folders in which this process has called `_remove_unused`."""


def _remove_unused(folder: Path) -> None:
    """Remove the files of each table whose kept files have not changed for `_UNUSED_S`."""
    before = time() - _UNUSED_S
    with suppress(OSError):
        for table in folder.iterdir():
            if table.stat().st_mtime < before:
                rmtree(table, ignore_errors=True)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]


def _log_name(name: str, tag: str) -> str:
    return f"{name}.{_digest(tag)}"


def _data_name(path: str) -> str:
    return f"{_DATA}{_digest(path)}"

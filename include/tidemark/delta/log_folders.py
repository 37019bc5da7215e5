"""Temporary folders with the log of a table, from which delta-rs opens the table."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from shutil import copyfile, rmtree
from tempfile import gettempdir, mkdtemp
from time import time
from uuid import uuid4
from weakref import WeakSet, finalize

LOG = "_delta_log"
_PREFIX = "tidemark-log-"
_ABANDONED_S = 24 * 60 * 60
"""Age in seconds from which another process removes the folder of a killed process."""
_CLOCKS_S = 60.0
"""Difference of the clocks of the file system and of the processes, seconds."""
PLAIN = re.compile(r"[A-Za-z0-9_./:@+-]+")
"""Locations that delta-rs does not encode."""
LOG_FILE = re.compile(r"\d{20}\.(?:json|checkpoint(?:\.\d{10}\.(?P<parts>\d{10}))?\.parquet)")
"""Name of a commit, a checkpoint, or a part of a checkpoint, with the number of parts."""

PART = "."
"""The first character of the name of an unfinished file."""


class NotCopied(Exception):
    """The log cannot be copied. delta-rs then opens the table itself, or reports the error."""


def version_of(name: str) -> int:
    """Return the version of a file of a log."""
    return int(name[:20])


def commit_path(version: int) -> str:
    """Return the path of a commit in its table."""
    return f"{LOG}/{version:020}.json"


def write_whole(target: Path, content: bytes) -> None:
    """Write a file that no other user can read. A concurrent reader sees all of it or none."""
    part = target.with_name(f"{PART}{target.name}.{uuid4()}")
    try:
        part.touch(mode=0o600)
        part.write_bytes(content)
        part.replace(target)
    except OSError:
        # For example on a full disk.
        part.unlink(missing_ok=True)
        raise


class LogFolder:
    """A temporary folder with a log, removed with the last object that uses it.

    A forked process does not remove folders of its parent.
    """

    def __init__(self) -> None:
        _clean_up()
        self.path = Path(mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")).resolve()
        self._removed = finalize(self, _remove, self.path, os.getpid())
        _folders.add(self)
        if not PLAIN.fullmatch(str(self.path)):
            # delta-rs encodes other characters in the paths of files.
            raise NotCopied
        (self.path / LOG).mkdir()

    def write(self, path: str, content: bytes) -> None:
        """Write a file of the table with `write_whole`."""
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)

    def has(self, path: str) -> bool:
        """Whether a file of the table exists."""
        return (self.path / path).exists()

    def log_until(self, version: int) -> list[str]:
        """Return the files of the log up to a version."""
        try:
            names = os.listdir(self.path / LOG)
        except FileNotFoundError:
            return []
        return [n for n in names if LOG_FILE.fullmatch(n) and version_of(n) <= version]

    def take(self, other: LogFolder, names: Iterable[str]) -> None:
        """Take files of the log from another folder."""
        for name in names:
            source, target = other.path / LOG / name, self.path / LOG / name
            try:
                os.link(source, target)
            except FileNotFoundError:
                raise
            except OSError:
                # Some file systems have no links.
                copyfile(source, target)

    def remove(self) -> None:
        """Remove the folder."""
        self._removed()


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        rmtree(folder, ignore_errors=True)


_folders: WeakSet[LogFolder] = WeakSet()
_cleaned_by: set[int] = set()
"""Processes that have registered `_remove_all`."""


def _clean_up() -> None:
    """Remove folders of killed processes now, and folders of this process when it ends.

    A task process of Airflow does not call the functions that its parent has registered.
    """
    if os.getpid() in _cleaned_by:
        return
    _cleaned_by.add(os.getpid())
    atexit.register(_remove_all)
    before = time() - _ABANDONED_S
    for folder in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, ValueError, OverflowError):
            process = int(folder.name.removeprefix(_PREFIX).partition("-")[0])
            changed = folder.stat().st_mtime
            if changed < before and not _has_run_since(process, changed):
                rmtree(folder, ignore_errors=True)


def _has_run_since(process: int, since: float) -> bool:
    """Whether a process runs that had started at a time: numbers of processes are used again."""
    import psutil

    try:
        return bool(psutil.Process(process).create_time() <= since + _CLOCKS_S)
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False


def _remove_all() -> None:
    for folder in list(_folders):
        folder.remove()

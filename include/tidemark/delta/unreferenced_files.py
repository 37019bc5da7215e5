"""Rules for the removal of files: the files to which no version and no plan refers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from tidemark.core.datafile import plan_of_folder
from tidemark.delta.errors import ClockDiffers

CLOCK_TOLERANCE = timedelta(minutes=10)
"""Largest difference of this machine's and the storage's clock for a removal of files by age."""

TRIAL_PREFIX = ".tidemark-trial-"
"""Prefix of the name of the folder in which a process tests conditional writes."""
CLOCK_PROBE_PREFIX = ".tidemark-clock-"
"""Prefix of the name of the file that maintenance writes to read the storage's clock."""
PROBE_LIFETIME = timedelta(hours=1)
"""No process uses a clock probe or a trial folder of this age."""
LONGEST_RETENTION = timedelta(days=36_500)
"""A longer retention of removed files counts as this one, which keeps every file."""

IsPlanFinished: TypeAlias = Callable[[int], bool]
"""Returns True if no process can still land the plan of this number."""

_ENGINE_FILE = re.compile(r"([^/=]+=[^/]*/)*part-[^/]+\.parquet")
"""Paths of files that delta-rs and Spark write themselves, in folders of partition values."""
_VECTOR_FILE = re.compile(r"\.?deletion_vector_[0-9a-f-]{36}\.bin(\.crc)?")
"""Paths of files with deletion vectors, and of their checksums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file below a table's folder, whether a version refers to it or not.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        modified_ms: Time of the last write, milliseconds since 1970.
    """

    path: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The files of a table's newest version.

    Attributes:
        files: Number of files.
        bytes: Their size.
        retention: The table's own retention of removed files; None without the table property.
    """

    files: int
    bytes: int
    retention: timedelta | None


def checked_storage_time(subject: str, local: datetime, storage: datetime) -> datetime:
    """Return the time of the storage, which measures the age of its files.

    Args:
        subject: Name of the table or folder, for the error.
        local: The time by this machine's clock.
        storage: The time by the storage's clock, taken from a file that was just written.

    Raises:
        ClockDiffers: The two are more than `CLOCK_TOLERANCE` apart.
    """
    if abs(local - storage) > CLOCK_TOLERANCE:  # fence: wrong-clock-removes-nothing
        raise ClockDiffers(subject=subject, local=local, storage=storage)
    return storage


def file_key(path: str) -> str:
    """Return the key by which paths of one file are compared.

    The key is the file name, with the folder of the sink's attempt if the file is in one. Names
    contain UUIDs, so they are unique. Whole paths of one file differ: they are relative or not,
    and characters of partition values are encoded once or twice. A checksum file of Hadoop has
    the key of its data file.
    """
    *folders, name = path.split("/")
    if name.startswith(".") and name.endswith(".crc"):
        name = name[1:-4]
    if folders and plan_of_folder(folders[-1]) is not None:
        return f"{folders[-1]}/{name}"
    return name


def is_vector_file(path: str) -> bool:
    """Return whether a path, relative to its table, is of a file with deletion vectors."""
    return _VECTOR_FILE.fullmatch(path) is not None


def unreferenced_files(
    stored: Iterable[StoredFile],
    referenced: Collection[str],
    before_ms: int,
    is_finished: IsPlanFinished,
) -> list[StoredFile]:
    """Return old files that no retained version refers to and that no process will commit.

    Ignores files that neither Tidemark nor an engine has written.

    Args:
        stored: Files below the table's folder.
        referenced: Keys (`file_key`) of the files of all versions that must remain readable.
        before_ms: Files that were written later stay, milliseconds since 1970.
        is_finished: Read before `referenced`: a plan that lands between the two reads counts as
            open.
    """
    return [
        file
        for file in stored
        if file.modified_ms < before_ms  # fence: recent-files-stay
        and file_key(file.path) not in referenced
        and _is_removable(file.path, is_finished)
    ]


def leftover_probes(stored: Iterable[StoredFile], now: datetime) -> list[StoredFile]:
    """Return files that processes wrote to test the storage or its clock, and did not remove.

    Args:
        stored: Files below the table's folder.
        now: The time by the storage's clock.
    """
    before_ms = int((now - PROBE_LIFETIME).timestamp() * 1000)
    return [
        file
        for file in stored
        if file.modified_ms < before_ms and file.path.startswith((CLOCK_PROBE_PREFIX, TRIAL_PREFIX))
    ]


def _is_removable(path: str, is_finished: IsPlanFinished) -> bool:
    """Whether a file is of a finished plan or written by an engine."""
    top, below, _ = path.partition("/")
    sequence = plan_of_folder(top) if below else None
    if sequence is not None:
        return is_finished(sequence)
    return _ENGINE_FILE.fullmatch(path) is not None or is_vector_file(path)

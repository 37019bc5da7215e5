"""Maintenance of one Delta table: few files, and none that nobody needs."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import uuid4

from deltalake import DeltaTable

from tidemark.core.datafile import plan_of_folder
from tidemark.core.errors import SetupError
from tidemark.lake.compaction import Compaction
from tidemark.lake.data_table import check_owner
from tidemark.lake.live_files import table_filesystem
from tidemark.lake.table_io import open_if_exists
from tidemark.lake.unreadable_files import translate_read_errors
from tidemark.lake.unreferenced_files import (
    CLOCK_PROBE_PREFIX,
    TRIAL_PREFIX,
    IsPlanFinished,
    StoredFile,
    TableFiles,
    checked_storage_time,
    file_key,
    leftover_probes,
    unreferenced_files,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Requests to the storage: on an object store each waits."""
_COMMIT = re.compile(r"_delta_log/\d{20}\.json")
_AMOUNT = r"(\d+)\s+(millisecond|second|minute|hour|day|week)s?"
_INTERVAL = re.compile(rf"(?:interval\s+)?{_AMOUNT}(?:\s+{_AMOUNT})*")


class DeltaMaintainedTable:
    """Compacts a table, and removes files that no version within a retention refers to.

    Args:
        uri: The table.
        pipeline: The pipeline whose data table it must be; None for a table of another kind.
    """

    def __init__(self, uri: str, pipeline: str | None = None) -> None:
        self._uri = uri
        self._pipeline = pipeline

    def current_files(self) -> TableFiles | None:
        """The newest version's files; None if there is no table.

        Raises:
            ForeignTable: It is not the pipeline's.
            SetupError: Nobody knows how long it keeps removed files.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return None
        if self._pipeline is not None:
            check_owner(table, self._uri, self._pipeline)
        files = table.get_add_actions(flatten=True)
        own = table.metadata().configuration.get("delta.deletedFileRetentionDuration")
        return TableFiles(
            files=files.num_rows,
            bytes=sum(files.column("size_bytes").to_pylist()),
            retention=None if own is None else _interval(own),
        )

    def compact(self) -> int:
        """Rewrite small files as fewer, in one commit that changes no row. Returns their number.

        Concurrent landings continue, and their files stay unchanged.

        Raises:
            CompactionConflict: Other commits removed these files; nothing was changed.
            SetupError: The target size of the table cannot be parsed.
            EngineFailed: The compaction failed, or its answer was lost.
        """
        with translate_read_errors(self._uri, "compacting the table"):
            replaced = self._compaction().run()
            if replaced:
                # Readers need not go through all that was added and removed.
                DeltaTable(self._uri).create_checkpoint()
        return replaced

    def _compaction(self) -> Compaction:
        return Compaction(self._uri)

    def remove_unreferenced(
        self, now: datetime, keep: timedelta, is_finished: IsPlanFinished, *, dry_run: bool = False
    ) -> Sequence[StoredFile]:
        """Remove files that are older than `keep` and that no version since then refers to.

        Also removes files older than an hour that another process wrote to test the storage or to
        read its clock, and did not remove.

        Also removes commits of the log that are older than the table's log retention. Writers leave
        them: delta-rs and Spark would take their age from the clock of the writer's machine.

        Does not use delta-rs' VACUUM: it misses files that a checkpoint has dropped, and removes
        files that an open plan is about to commit (docs/adr/0015).

        Args:
            now: The time by this machine's clock.
            keep: Versions that were the newest so long ago, or later, can be read.
            is_finished: Plans whose files no driver can commit any more; read before this call.
            dry_run: Remove nothing, and use this machine's clock.

        Returns:
            The removed files; in a dry run the files to remove.

        Raises:
            ClockDiffers: The storage's clock differs; nothing was removed.
            EngineFailed: Some may be gone; do it again.
        """
        with translate_read_errors(self._uri, "removing files"):
            if not dry_run:
                now = checked_storage_time(self._uri, now, self._storage_time())
            # Before the listing: it has the commits that removed any of these meanwhile.
            newest = self._in_newest()
            files = table_filesystem(self._uri)
            since_ms = int((now - keep).timestamp() * 1000)
            listed = list(_listed(files))
            # fence: files-of-retained-versions-stay
            needed = newest | _named_since(files, listed, since_ms)
            stored = [file for file in listed if not file.path.startswith("_delta_log/")]
            found = [
                *unreferenced_files(stored, needed, since_ms, is_finished),
                *leftover_probes(stored, now),
            ]
            if not dry_run:
                with ThreadPoolExecutor(_AT_ONCE) as threads:
                    list(threads.map(partial(_remove, files), found))
                self._remove_folders(found)
                DeltaTable(self._uri).cleanup_metadata()
        return found

    def _storage_time(self) -> datetime:
        """The time by the storage's clock, from a file that this method writes and removes.

        The file's name begins with a dot, so readers of the folder ignore it.
        """
        files, path = table_filesystem(self._uri), f"{CLOCK_PROBE_PREFIX}{uuid4()}"
        # Without a buffer, PyArrow passes an object that delta-rs does not accept.
        with files.open_output_stream(path, buffer_size=64) as probe:
            probe.write(b"the time")
        try:
            written = files.get_file_info(path).mtime_ns
        finally:
            files.delete_file(path)
        return datetime.fromtimestamp(written / 1_000_000_000, UTC)

    def _in_newest(self) -> set[str]:
        return _names(DeltaTable(self._uri).file_uris())

    def _remove_folders(self, found: Sequence[StoredFile]) -> None:
        """Remove empty folders of attempts and of storage tests; an object store has none."""
        if "://" in self._uri:
            return
        tops = {file.path.partition("/")[0] for file in found}
        own = (
            name
            for name in tops
            if plan_of_folder(name) is not None or name.startswith(TRIAL_PREFIX)
        )
        for top in sorted(own):
            for folder, _, _ in os.walk(Path(self._uri, top), topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()


def _listed(files: FileSystem) -> Iterator[StoredFile]:
    from pyarrow.fs import FileSelector, FileType

    for info in files.get_file_info(FileSelector("", recursive=True)):
        if info.type == FileType.File and info.mtime_ns is not None:
            yield _stored(info)


def _stored(info: FileInfo) -> StoredFile:
    return StoredFile(path=info.path, size=info.size or 0, modified_ms=info.mtime_ns // 1_000_000)


def _named_since(files: FileSystem, listed: Sequence[StoredFile], since_ms: int) -> set[str]:
    """Files that some commit since a moment has added or removed.

    What a version at that moment or later refers to, and the newest does not, was removed since.
    """
    commits = [
        file.path
        for file in listed
        if _COMMIT.fullmatch(file.path) and file.modified_ms >= since_ms
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return {name for names in threads.map(partial(_named_in, files), commits) for name in names}


def _named_in(files: FileSystem, commit: str) -> set[str]:
    try:
        with files.open_input_stream(commit) as source:
            text = source.read().decode()
    except FileNotFoundError:
        # Cleaned up with the log since it was listed: no version before it can be read.
        return set()
    actions = (json.loads(line) for line in text.splitlines() if line.strip())
    paths = (action[kind]["path"] for action in actions for kind in _FILES if kind in action)
    return _names(paths)


def _names(paths: Iterable[str]) -> set[str]:
    """What files are known by, whether their paths are encoded or not: rather one too many."""
    return {file_key(each) for path in paths for each in (path, unquote(path))}


_FILES = ("add", "remove")


def _remove(files: FileSystem, file: StoredFile) -> None:
    # Somebody else may have been first.
    with suppress(FileNotFoundError):
        files.delete_file(file.path)
        log.info("removed file=%s bytes=%d", file.path, file.size)


def _interval(text: str) -> timedelta:
    """A table property such as `interval 7 days`.

    Raises:
        SetupError: It says something else, which may be longer than any guess.
    """
    told = text.strip().lower()
    if not _INTERVAL.fullmatch(told):
        raise SetupError(
            subject="how long a table keeps removed files cannot be read",
            needed="delta.deletedFileRetentionDuration such as `interval 7 days`",
            seen=repr(text),
            advice="set the table property anew",
        )
    amounts = re.findall(_AMOUNT, told)
    return sum((timedelta(**{f"{unit}s": int(n)}) for n, unit in amounts), timedelta())

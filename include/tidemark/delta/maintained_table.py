"""Compaction of one Delta table, and removal of its unreferenced files."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from tidemark.delta.compaction import Compaction
from tidemark.delta.deletion_vectors import files_in, vector_paths
from tidemark.delta.delta_errors import space_needed, translate_delta_errors
from tidemark.delta.live_files import table_filesystem, write_file
from tidemark.delta.table_checks import check_owner
from tidemark.delta.table_io import open_if_exists
from tidemark.delta.unreadable_files import translate_read_errors
from tidemark.delta.unreferenced_files import (
    CLOCK_PROBE_PREFIX,
    LONGEST_RETENTION,
    TRIAL_PREFIX,
    IsPlanFinished,
    StoredFile,
    TableFiles,
    checked_storage_time,
    file_key,
    is_vector_file,
    leftover_probes,
    unreferenced_files,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

log = logging.getLogger(__name__)

_CONCURRENT_REQUESTS = 16
"""Concurrent requests; a request to an object store takes tens of milliseconds."""
_COMMIT = re.compile(r"_delta_log/\d{20}\.json")
_AMOUNT = r"(\d+)\s+(millisecond|second|minute|hour|day|week)s?"
_INTERVAL = re.compile(rf"(?:interval\s+)?{_AMOUNT}(?:\s+{_AMOUNT})*")


class DeltaMaintainedTable:
    """Compacts a table, and removes files that no version within a retention refers to.

    Args:
        uri: The table.
        pipeline: The pipeline whose data table it must be; None for a table of another kind.
        remove_expired: Removes the rows that are too old at a time; by default, rows stay for ever.
    """

    def __init__(
        self,
        uri: str,
        pipeline: str | None = None,
        remove_expired: Callable[[datetime], object] = lambda _: None,
    ) -> None:
        self._uri = uri
        self._pipeline = pipeline
        self._remove_expired = remove_expired

    def current_files(self) -> TableFiles | None:
        """Return the files of the newest version; None if there is no table."""
        with translate_delta_errors(self._uri, "reading the table"):
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
        """
        compaction = Compaction(self._uri)
        with (
            space_needed(compaction.bytes_to_write),
            translate_read_errors(self._uri, "compacting the table"),
        ):
            replaced = compaction.run()
            if replaced:
                # Readers need not replay the added and removed files.
                DeltaTable(self._uri).create_checkpoint()
        return replaced

    def remove_unreferenced(
        self,
        now: datetime,
        retention: timedelta,
        is_finished: IsPlanFinished,
        *,
        dry_run: bool = False,
    ) -> Sequence[StoredFile]:
        """Remove files older than `retention` that no version within `retention` refers to.

        First removes expired rows; the files without rows are removed after the retention.

        Also removes files older than an hour that another process wrote to test the storage or to
        read its clock, and did not remove.

        Also removes commits of the log that are older than the table's log retention. Writers leave
        them: delta-rs and Spark would take their age from the clock of the writer's machine.

        Does not use delta-rs' VACUUM, which misses files that a checkpoint has dropped, and removes
        files that an open plan is about to commit (docs/adr/0015-maintenance.md).
        """
        with translate_read_errors(self._uri, "removing files"):
            if not dry_run:
                now = checked_storage_time(self._uri, now, self._storage_time())
                self._remove_expired(now)
            # Before the listing, which then contains the commits that remove any of these files.
            table = self._newest_version()
            newest = _keys(table.file_uris())
            files = table_filesystem(self._uri)
            since_ms = int((now - retention).timestamp() * 1000)
            listed = list(_stored_files(files))
            # fence: files-of-retained-versions-stay
            referenced = newest | _keys_since(files, listed, since_ms)
            stored = [file for file in listed if not file.path.startswith("_delta_log/")]
            if any(is_vector_file(file.path) for file in stored):
                vectors = vector_paths(files, (each.path for each in listed), table.version())
                if vectors is None:
                    stored = [file for file in stored if not is_vector_file(file.path)]
                else:
                    referenced |= _keys(vectors)  # fence: files-of-vectors-stay
            found = [
                *unreferenced_files(stored, referenced, since_ms, is_finished),
                *leftover_probes(stored, now),
            ]
            if not dry_run:
                with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as threads:
                    list(threads.map(partial(_remove, files), found))
                self._remove_folders(found)
                DeltaTable(self._uri).cleanup_metadata()
        return found

    def _storage_time(self) -> datetime:
        """The time by the storage's clock, from a file that this method writes and removes.

        The file's name begins with a dot, so readers of the folder ignore it.
        """
        files, path = table_filesystem(self._uri), f"{CLOCK_PROBE_PREFIX}{uuid4()}"
        write_file(files, path, b"the time")
        try:
            written = files.get_file_info(path).mtime_ns
        finally:
            files.delete_file(path)
        return datetime.fromtimestamp(written / 1_000_000_000, UTC)

    def _newest_version(self) -> DeltaTable:
        return DeltaTable(self._uri)

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


def _stored_files(files: FileSystem) -> Iterator[StoredFile]:
    from pyarrow.fs import FileSelector, FileType

    for info in files.get_file_info(FileSelector("", recursive=True)):
        if info.type == FileType.File and info.mtime_ns is not None:
            yield _stored(info)


def _stored(info: FileInfo) -> StoredFile:
    return StoredFile(path=info.path, size=info.size or 0, modified_ms=info.mtime_ns // 1_000_000)


def _keys_since(files: FileSystem, listed: Sequence[StoredFile], since_ms: int) -> set[str]:
    """Return the keys of files that commits since a time have added or removed.

    If a version since then refers to a file and the newest version does not, a commit since then
    has removed the file.
    """
    commits = [
        file.path
        for file in listed
        if _COMMIT.fullmatch(file.path) and file.modified_ms >= since_ms
    ]
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as threads:
        return {name for names in threads.map(partial(_keys_in, files), commits) for name in names}


def _keys_in(files: FileSystem, commit: str) -> set[str]:
    try:
        with files.open_input_stream(commit) as source:
            text = source.read().decode()
    except FileNotFoundError:
        # Removed with old commits since the listing: no version before it can be read.
        return set()
    return _keys(path for both in files_in(text) for path in both if path is not None)


def _keys(paths: Iterable[str]) -> set[str]:
    """Return the keys of paths, both unchanged and percent-decoded."""
    return {file_key(each) for path in paths for each in (path, unquote(path))}


def _remove(files: FileSystem, file: StoredFile) -> None:
    # Another process may have removed it.
    with suppress(FileNotFoundError):
        files.delete_file(file.path)
        log.info("file removed file=%s bytes=%d", file.path, file.size)


def _interval(text: str) -> timedelta:
    """Parse a table property such as `interval 7 days`, at most `LONGEST_RETENTION`.

    Raises `SetupError` for another form; the retention may then be longer than any default.
    """
    interval = text.strip().lower()
    if not _INTERVAL.fullmatch(interval):
        raise SetupError(
            finding="The retention of a table's removed files cannot be parsed.",
            needed="delta.deletedFileRetentionDuration such as `interval 7 days`",
            seen=repr(text),
            advice="Correct delta.deletedFileRetentionDuration with ALTER TABLE ... SET "
            "TBLPROPERTIES.",
        )
    amounts = re.findall(_AMOUNT, interval)
    try:
        own = sum((timedelta(**{f"{unit}s": int(n)}) for n, unit in amounts), timedelta())
    except OverflowError:
        return LONGEST_RETENTION
    return min(own, LONGEST_RETENTION)

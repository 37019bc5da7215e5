"""Tables in object stores, opened from a copy of their log (docs/adr/0029-copies-of-logs.md).

delta-rs opens a table in an object store with 13 + 2n requests, for n commits after the newest
checkpoint. It reads these commits again for each transaction. A copy of the log takes 3 + n
concurrent requests. A later look at the log takes one request, which also shows whether another
table has replaced this one.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError

from tidemark.delta.copied_tables import OpenedTable, Tags
from tidemark.delta.kept_files import KeptFiles, kept_files_of
from tidemark.delta.log_folders import (
    LOG,
    LOG_FILE,
    PLAIN,
    LogFolder,
    NotCopied,
    commit_path,
    version_of,
)
from tidemark.delta.store_commits import OvertakenCommit, create_commit

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

log = logging.getLogger(__name__)

_CONCURRENT_READS = 32
_LOOKS = 5
"""Most attempts to copy a log while other processes replace its files."""
_KEPT = 64
"""Most tables of which a process keeps a copy."""
_PAUSE_S = 60.0
"""Seconds after a failure of the storage during which delta-rs opens the table."""
_TRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""Retries of a request. delta-rs, which opens the table if they fail, retries for longer."""
_COMMIT = re.compile(rf"{LOG}/\d{{20}}\.json")
_OTHER_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.[^.]*-[^.]*\.(?:json|parquet)")
"""A checkpoint with a unique name, which may refer to further files."""


class _Replaced(Exception):
    """Another process replaced or removed files of the log since they were listed."""


class LogCopy:
    """A copy of the log of one table: the newest checkpoint, and the commits after it.

    Args:
        uri: The table.
        store: The folder of the table.
        open_for_writes: Opens the folder with more retries.
        kept: Files that earlier processes have kept; None to use and keep none.
    """

    def __init__(
        self,
        uri: str,
        store: ObjectStore,
        open_for_writes: Callable[[], ObjectStore],
        kept: KeptFiles | None,
    ) -> None:
        self.uri = uri.rstrip("/")
        self._store = store
        self._open_for_writes = open_for_writes
        self._kept = kept
        self._lock = Lock()
        self._since: int | None = None
        self._tags: Tags = {}
        self._folder = LogFolder()
        self._opened: OpenedTable | None = None
        self._has_restarted = self._has_failed = False

    def open(self) -> OpenedTable:
        """Return the newest version; the same object if the log is unchanged.

        A later call takes one request if the log is unchanged.

        Raises:
            NotCopied: The log cannot be copied, or an earlier call has failed.
        """
        with self._lock:
            for _ in range(_LOOKS):
                if self._has_failed:
                    break
                try:
                    return self._look()
                except _Replaced:
                    self._forget()
                except BaseException:
                    self._has_failed = True
                    raise
        raise NotCopied

    def _forget(self) -> None:
        self._since, self._tags, self._opened = None, {}, None
        self._has_restarted = True
        self._folder = LogFolder()

    def _look(self) -> OpenedTable:
        found, checkpoint = self._found()
        _check_contiguous(found, checkpoint)
        tags = {name: tag for name, tag in found.items() if version_of(name) >= (checkpoint or 0)}
        if self._opened is not None and not self._opened.is_complete():
            raise _Replaced
        if self._opened is not None and tags == self._tags:
            return self._opened
        # fence: replaced-table-is-copied-again
        if any(found.get(name) != tag for name, tag in self._tags.items()):
            raise _Replaced
        if (checkpoint or 0) != self._since:
            # The files before the checkpoint end with the last table that uses them.
            folder = LogFolder()
            self._tags = {name: tag for name, tag in self._tags.items() if name in tags}
            try:
                folder.take(self._folder, self._tags)
            except FileNotFoundError as missing:
                raise _Replaced from missing
            self._folder = folder
        self._copy({name: tag for name, tag in tags.items() if name not in self._tags})
        if self._kept is not None and (checkpoint or 0) != self._since:
            self._kept.remove_other_logs(tags)
        self._tags, self._since = tags, checkpoint or 0
        self._opened = OpenedTable(self, self._folder, tags)
        return self._opened

    def _found(self) -> tuple[dict[str, str], int | None]:
        """Return the tags of files from a checkpoint on, and the version of the newest checkpoint.

        Raises:
            _Replaced: They are not known from the newest copied checkpoint on.
        """
        since, is_known = self._since, True
        if since is None and self._kept is not None and not self._has_restarted:
            since = self._kept.newest_checkpoint()
        if since is None:
            since, is_known = self._last_checkpoint(), False
        try:
            found = self._list(since)
        except NotCopied:
            if is_known and not self._has_restarted:
                # The newest checkpoint may be a single file.
                raise _Replaced from None
            raise
        checkpoint = _newest_checkpoint(found)
        if checkpoint is None and since:
            # Maintenance has removed the checkpoint, or another table replaced this one.
            raise _Replaced if is_known else NotCopied
        return found, checkpoint

    def _last_checkpoint(self) -> int:
        try:
            return int(json.loads(self._read(f"{LOG}/_last_checkpoint"))["version"])
        except FileNotFoundError:
            return 0

    def _list(self, since: int) -> dict[str, str]:
        """Return the tags of the commits and checkpoints from a version on."""
        found: dict[str, str] = {}
        offset = f"{LOG}/{since:020}" if since else None
        for page in self._store.list(LOG, offset=offset):
            for each in page:
                name = each["path"].rpartition(f"{LOG}/")[2]
                if LOG_FILE.fullmatch(name) and each["e_tag"]:
                    found[name] = _plain_tag(each["e_tag"])
                elif LOG_FILE.fullmatch(name) or _OTHER_CHECKPOINT.fullmatch(name):
                    raise NotCopied
        if not found and not since:
            raise NotCopied
        return found

    def _read(self, path: str) -> bytes:
        return bytes(self._store.get(path).bytes())

    def _copy(self, tags: Tags) -> None:
        """Copy files of the log.

        Raises:
            _Replaced: A file is missing, or differs from the listed one.
        """

        def copy(name: str) -> None:
            content = self._kept.read(name, tags[name]) if self._kept else None
            if content is None:
                content = self._copied(name, tags[name])
            self._folder.write(f"{LOG}/{name}", content)

        _for_each(copy, tags)

    def _copied(self, name: str, tag: str) -> bytes:
        try:
            answer = self._store.get(f"{LOG}/{name}")
            content = bytes(answer.bytes())
        except FileNotFoundError as missing:
            raise _Replaced from missing
        if _plain_tag(answer.meta["e_tag"]) != tag:
            raise _Replaced
        if self._kept is not None:
            self._kept.write(name, tag, content)
        return content

    def add(self, paths: Iterable[str], folder: LogFolder) -> None:
        """Copy files of the table that a folder lacks, if they exist."""

        def copy(path: str) -> None:
            with suppress(FileNotFoundError):
                folder.write(path, self._read(path))

        _for_each(copy, [path for path in paths if not folder.has(path)])

    def keep(
        self, paths: Iterable[str], folder: LogFolder, live: Callable[[], Collection[str]]
    ) -> None:
        """Copy data files as `add`, and keep them for later processes.

        Args:
            paths: The files.
            folder: The folder to copy to.
            live: Returns the data files of the version. Kept files that it lacks are removed.
        """
        if self._kept is None:
            self.add(paths, folder)
            return
        missing = [path for path in paths if not folder.has(path)]
        for path in missing:
            content = self._kept.read_data(path)
            if content is not None:
                folder.write(path, content)
        fetched = [path for path in missing if not folder.has(path)]
        self.add(fetched, folder)
        for path in fetched:
            if folder.has(path):
                self._kept.write_data(path, (folder.path / path).read_bytes())
        if fetched:
            self._kept.remove_other_data(live())

    def commits(self) -> frozenset[int]:
        """Return the versions whose commit files are in the log."""
        names = (each["path"] for page in self._store.list(LOG) for each in page)
        return frozenset(
            version_of(name.rpartition("/")[2]) for name in names if _COMMIT.fullmatch(name)
        )

    def create(self, written: Path, table: OpenedTable, *, retries: int) -> None:
        """Create the commit that delta-rs has made in a folder, and the files that it adds.

        Args:
            written: The folder, with a copy of the log.
            table: The version that the commit follows.
            retries: See `create_commit`.

        Raises:
            OvertakenCommit: See `create_commit`; or another table replaced this one.
        """
        version = table.version() + 1
        commit = Path(written, commit_path(version))
        if not commit.exists():
            raise DeltaError(f"delta-rs has not made version {version}")
        newest = f"{version - 1:020}.json"
        try:
            found = self._list(version - 1).get(newest)
        except NotCopied as changed:
            reason = "another program has written a new kind of checkpoint"
            raise OvertakenCommit(reason) from changed
        # fence: store-commit-follows-its-version
        if found is None or found != table.tags.get(newest):
            raise OvertakenCommit(f"another table replaced version {version - 1}")
        store = self._open_for_writes()
        data = [each for each in written.rglob("*.parquet") if each.parent.name != LOG]

        def put(file: Path) -> None:
            store.put(file.relative_to(written).as_posix(), file.read_bytes())

        _for_each(put, data)
        created = create_commit(store, version, commit.read_bytes(), retries=retries)
        checkpoint = Path(written, LOG, f"{version:020}.checkpoint.parquet")
        if created == version and checkpoint.exists():
            try:
                # In this order: a reader of the second file expects the first.
                put(checkpoint)
                put(Path(written, LOG, "_last_checkpoint"))
            except Exception as failed:  # noqa: BLE001  the commit is made
                log.warning(
                    "checkpoint not written uri=%s table_version=%d error=%s",
                    *(self.uri, version, type(failed).__name__),
                )


def open_copied(uri: str) -> OpenedTable | None:
    """Open the newest version of a table from a copy of its log.

    Returns:
        None if the log cannot be copied. delta-rs then opens the table, or reports the error.
    """
    if not is_copied(uri):
        return None
    try:
        return _copy_of(uri).open()
    except Exception as failed:  # noqa: BLE001  delta-rs opens the table, and its errors have names
        with _adding:
            _copies.pop(uri, None)
            if not isinstance(failed, NotCopied):
                log.info("log not copied uri=%s error=%s", uri, type(failed).__name__)
                _failed_at[uri] = monotonic()
        return None


def is_copied(uri: str) -> bool:
    """Whether to open a table from a copy of its log: only one in an object store.

    False with an external lock of delta-rs, and for `_PAUSE_S` after a failure of the storage.
    """
    if "://" not in uri or uri.startswith("file:") or not PLAIN.fullmatch(uri):
        return False
    if os.environ.get("AWS_S3_LOCKING_PROVIDER") or _used_by - {os.getpid()}:
        return False
    return monotonic() - _failed_at.get(uri, -_PAUSE_S) >= _PAUSE_S


def _copy_of(uri: str) -> LogCopy:
    from obstore.store import LocalStore, from_url

    with _adding:
        copy = _copies.pop(uri, None)
        if copy is None:
            _used_by.add(os.getpid())
            kept = kept_files_of(uri)
            copy = (
                LogCopy(uri, from_url(uri, retry_config=_TRIES), partial(from_url, uri), kept)
                if "://" in uri
                else LogCopy(uri, LocalStore(uri), partial(LocalStore, uri), kept)
            )
        _copies[uri] = copy
        while len(_copies) > _KEPT:
            del _copies[next(iter(_copies))]
        return copy


def forget_copies() -> None:
    """Remove all copies, as in a new process."""
    global _adding
    _adding = Lock()
    _copies.clear()
    _failed_at.clear()


_copies: dict[str, LogCopy] = {}
_failed_at: dict[str, float] = {}
"""Time of the last failure of the storage, by table (seconds of `monotonic`)."""
_used_by: set[int] = set()
"""This process, and its parents, that have read a storage. In a fork, requests do not end."""
_adding = Lock()
os.register_at_fork(after_in_child=forget_copies)


def _plain_tag(tag: str | None) -> str:
    """Return an entity tag without quotes, which Azure adds only to some answers."""
    return (tag or "").strip('"')


def _for_each(do: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call a function with each item, concurrently; raises the first error."""
    with ThreadPoolExecutor(_CONCURRENT_READS) as threads:
        list(threads.map(do, items))


def _newest_checkpoint(names: Iterable[str]) -> int | None:
    """Return the version of the newest checkpoint with all of its parts."""
    parts = Counter(
        (version_of(name), int(found["parts"] or 1))
        for name in names
        if "checkpoint" in name and (found := LOG_FILE.fullmatch(name))
    )
    complete = (
        version
        for (version, needed), count in parts.items()
        if count >= needed  # fence: incomplete-checkpoint-is-not-used
    )
    return max(complete, default=None)


def _check_contiguous(names: Iterable[str], checkpoint: int | None) -> None:
    """Raise `NotCopied` if a commit after the checkpoint is missing.

    Without a checkpoint, the commits must begin with version 0.
    """
    commits = {version_of(name) for name in names if name.endswith(".json")}
    first = 0 if checkpoint is None else checkpoint + 1
    later = {version for version in commits if version >= first}
    if len(later) != max(later, default=first - 1) - first + 1:
        raise NotCopied

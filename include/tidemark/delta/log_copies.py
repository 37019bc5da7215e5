"""Tables in object stores, opened from a copy of their log (docs/adr/0029-copies-of-logs.md).

delta-rs opens a table in an object store with 13 + 2n requests, for n commits after the newest
checkpoint. It reads these commits again for each transaction. A copy of the log takes 3 + n
concurrent requests. A later look at the log takes one request, which also shows whether another
table has replaced this one.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from shutil import copyfile, rmtree
from tempfile import gettempdir, mkdtemp
from threading import Lock
from time import monotonic, time
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote
from uuid import uuid4
from weakref import WeakSet, finalize

from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from tidemark.delta.store_commits import create_commit

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

log = logging.getLogger(__name__)

_CONCURRENT_READS = 32
_LOOKS = 5
"""Most attempts to copy a log while other processes replace its files."""
_KEPT = 64
"""Most tables of which a process keeps a copy."""
_COPIED_BYTES = 8 * 1024 * 1024
"""Most bytes of data files that `with_files` copies."""
_COPIED_FILES = 64
_RETRIES = 15
"""Retries of a commit after independent commits; the default of delta-rs."""
_PAUSE_S = 60.0
"""Seconds after a failure of the storage during which delta-rs opens the table."""
_TRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""Retries of a request. delta-rs, which opens the table if they fail, retries for longer."""

_LOG = "_delta_log"
_PREFIX = "tidemark-log-"
_PLAIN = re.compile(r"[A-Za-z0-9_./:@+-]+")
"""Locations that delta-rs does not encode."""
_ABANDONED_S = 24 * 60 * 60
"""Age of the folder of a killed process from which on another process removes it, seconds."""
_FILE = re.compile(r"(\d{20})\.(?:json|checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet)")
"""A commit, a checkpoint, or a part of one: number of the part, and number of parts."""
_COMMIT = re.compile(rf"{_LOG}/\d{{20}}\.json")
_OTHER_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.[^.]*-[^.]*\.(?:json|parquet)")
"""A checkpoint with a unique name, which may refer to further files."""

Tags: TypeAlias = Mapping[str, str]
"""Entity tags of files of a log, by file name. Files with different contents differ in the tag."""


class _NotCopied(Exception):
    """The log cannot be copied: delta-rs opens the table itself, or reports the error."""


class _Replaced(Exception):
    """Another process replaced or removed files of the log since they were listed."""


class _Folder:
    """A temporary folder with a log, removed with the last object that uses it.

    A forked process does not remove folders of its parent.
    """

    def __init__(self) -> None:
        _clean_up()
        self.path = Path(mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")).resolve()
        self._removed = finalize(self, _remove, self.path, os.getpid())
        _folders.add(self)
        if not _PLAIN.fullmatch(str(self.path)):
            # delta-rs encodes other characters in the paths of files.
            raise _NotCopied
        (self.path / _LOG).mkdir()

    def write(self, path: str, content: bytes) -> None:
        """Write a file of the table. A concurrent reader sees all of it or none."""
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{uuid4()}")
        part.write_bytes(content)
        part.replace(target)

    def has(self, path: str) -> bool:
        """Whether a file of the table exists."""
        return (self.path / path).exists()

    def take(self, other: _Folder, names: Iterable[str]) -> None:
        """Take files of the log from another folder."""
        for name in names:
            source, target = other.path / _LOG / name, self.path / _LOG / name
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


_folders: WeakSet[_Folder] = WeakSet()
_cleaned_by: set[int] = set()
"""Processes that have registered `_remove_all`."""


def _clean_up() -> None:
    """Remove folders of killed processes, and those of this process at its end.

    A task process of Airflow does not call the functions that its parent has registered.
    """
    if os.getpid() in _cleaned_by:
        return
    _cleaned_by.add(os.getpid())
    atexit.register(_remove_all)
    before = time() - _ABANDONED_S
    for folder in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, ValueError):
            process = int(folder.name.removeprefix(_PREFIX).partition("-")[0])
            if folder.stat().st_mtime < before and not _is_running(process):
                rmtree(folder, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _remove_all() -> None:
    for folder in list(_folders):
        folder.remove()


class LogCopy:
    """A copy of the log of one table: the newest checkpoint, and the commits after it.

    Args:
        uri: The table.
        store: The folder of the table.
        open_for_writes: Opens the folder with more retries.
    """

    def __init__(
        self, uri: str, store: ObjectStore, open_for_writes: Callable[[], ObjectStore]
    ) -> None:
        self.uri = uri.rstrip("/")
        self._store = store
        self._open_for_writes = open_for_writes
        self._lock = Lock()
        self._since: int | None = None
        self._tags: Tags = {}
        self._folder = _Folder()
        self._opened: OpenedTable | None = None
        self._has_failed = False

    def open(self) -> OpenedTable:
        """Return the newest version; the same object if the log is unchanged. Takes one request.

        Raises:
            _NotCopied: The log cannot be copied, or an earlier call has failed.
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
        raise _NotCopied

    def _forget(self) -> None:
        self._since, self._tags, self._opened = None, {}, None
        self._folder = _Folder()

    def _look(self) -> OpenedTable:
        is_known = self._since is not None
        since = self._since if self._since is not None else self._last_checkpoint()
        found = self._list(since)
        checkpoint = _newest_checkpoint(found)
        if checkpoint is None and since:
            # Maintenance has removed the checkpoint, or another table replaced this one.
            raise _Replaced if is_known else _NotCopied
        _check_contiguous(found, checkpoint)
        tags = {name: tag for name, tag in found.items() if _version(name) >= (checkpoint or 0)}
        if self._opened is not None and not self._opened.is_complete():
            raise _Replaced
        if self._opened is not None and tags == self._tags:
            return self._opened
        # fence: replaced-table-is-copied-again
        if any(found.get(name) != tag for name, tag in self._tags.items()):
            raise _Replaced
        if (checkpoint or 0) != self._since:
            # The files before the checkpoint end with the last table that uses them.
            folder = _Folder()
            self._tags = {name: tag for name, tag in self._tags.items() if name in tags}
            try:
                folder.take(self._folder, self._tags)
            except FileNotFoundError as missing:
                raise _Replaced from missing
            self._folder = folder
        self._copy({name: tag for name, tag in tags.items() if name not in self._tags})
        self._tags, self._since = tags, checkpoint or 0
        self._opened = OpenedTable(self, self._folder, tags)
        return self._opened

    def _last_checkpoint(self) -> int:
        try:
            return int(json.loads(self._read(f"{_LOG}/_last_checkpoint"))["version"])
        except FileNotFoundError:
            return 0

    def _list(self, since: int) -> dict[str, str]:
        """Return the tags of the commits and checkpoints from a version on."""
        found: dict[str, str] = {}
        offset = f"{_LOG}/{since:020}" if since else None
        for page in self._store.list(_LOG, offset=offset):
            for each in page:
                name = each["path"].rpartition(f"{_LOG}/")[2]
                if _FILE.fullmatch(name) and each["e_tag"]:
                    found[name] = _plain_tag(each["e_tag"])
                elif _FILE.fullmatch(name) or _OTHER_CHECKPOINT.fullmatch(name):
                    raise _NotCopied
        if not found and not since:
            raise _NotCopied
        return found

    def _read(self, path: str) -> bytes:
        return bytes(self._store.get(path).bytes())

    def _copy(self, tags: Tags) -> None:
        """Copy files of the log.

        Raises:
            _Replaced: A file is missing, or differs from the listed one.
        """

        def copy(name: str) -> None:
            try:
                answer = self._store.get(f"{_LOG}/{name}")
                content = bytes(answer.bytes())
            except FileNotFoundError as missing:
                raise _Replaced from missing
            if _plain_tag(answer.meta["e_tag"]) != tags[name]:
                raise _Replaced
            self._folder.write(f"{_LOG}/{name}", content)

        _for_each(copy, tags)

    def add(self, paths: Iterable[str], folder: _Folder) -> None:
        """Copy files of the table that a folder lacks, if they exist."""

        def copy(path: str) -> None:
            with suppress(FileNotFoundError):
                folder.write(path, self._read(path))

        _for_each(copy, [path for path in paths if not folder.has(path)])

    def commits(self) -> frozenset[int]:
        """Return the versions whose commit files are in the log."""
        names = (each["path"] for page in self._store.list(_LOG) for each in page)
        return frozenset(
            _version(name.rpartition("/")[2]) for name in names if _COMMIT.fullmatch(name)
        )

    def create(self, written: Path, table: OpenedTable, *, retries: int) -> None:
        """Create the commit that delta-rs has made in a folder, and the files that it adds.

        Args:
            written: The folder, with a copy of the log.
            table: The version that the commit follows.
            retries: See `create_commit`.

        Raises:
            CommitFailedError: See `create_commit`; or another table replaced this one.
        """
        version = table.version() + 1
        commit = Path(written, _commit_path(version))
        if not commit.exists():
            raise DeltaError(f"delta-rs has not made version {version}")
        newest = f"{version - 1:020}.json"
        try:
            found = self._list(version - 1).get(newest)
        except _NotCopied as changed:
            reason = "another program has written a new kind of checkpoint"
            raise CommitFailedError(reason) from changed
        # fence: store-commit-follows-its-version
        if found is None or found != table.tags.get(newest):
            raise CommitFailedError(f"another table replaced version {version - 1}")
        store = self._open_for_writes()
        data = [each for each in written.rglob("*.parquet") if each.parent.name != _LOG]

        def put(file: Path) -> None:
            store.put(file.relative_to(written).as_posix(), file.read_bytes())

        _for_each(put, data)
        created = create_commit(store, version, commit.read_bytes(), retries=retries)
        checkpoint = Path(written, _LOG, f"{version:020}.checkpoint.parquet")
        if created == version and checkpoint.exists():
            # In this order: a reader of the second file expects the first.
            put(checkpoint)
            put(Path(written, _LOG, "_last_checkpoint"))


class OpenedTable(DeltaTable):  # type: ignore[misc]  # without types
    """One version of a table in an object store. The state in its log needs no further request.

    Args:
        copy: The copy of the log.
        folder: The folder of the copy.
        tags: The files of the log at this version.
    """

    def __init__(self, copy: LogCopy, folder: _Folder, tags: Tags) -> None:
        super().__init__(folder.path, version=max(map(_version, tags)))
        self._copy = copy
        self._folder = folder
        self.tags = tags
        self._whole: DeltaTable | None = None
        self._local: DeltaTable | None = None

    def is_complete(self) -> bool:
        """Whether the copy has all files of the log, which another program may have removed."""
        return all(self._folder.has(f"{_LOG}/{name}") for name in self.tags)

    def deletion_vectors(self) -> Any:
        """Return the deletion vectors, as `DeltaTable.deletion_vectors`."""
        return self.with_rows().deletion_vectors()

    @property
    def table_uri(self) -> str:
        """The URI of the table, as delta-rs gives it."""
        return f"{self._copy.uri}/"

    def file_uris(self, *arguments: Any, **options: Any) -> list[str]:
        """Return the URIs of live files, as `DeltaTable.file_uris`."""
        return [f"{self.table_uri}{path}" for path in self._paths(*arguments, **options)]

    def _paths(self, *arguments: Any, **options: Any) -> list[str]:
        found = super().file_uris(*arguments, **options)
        return [uri.removeprefix(f"{self._folder.path}/") for uri in found]

    def log_with(self, limit: int | None) -> tuple[Path, Iterable[int]]:
        """Return the folder of the log, with some of the newest commits, and their versions.

        Args:
            limit: Number of commits; None for all that the log has.
        """
        end = self.version() + 1
        first = 0 if limit is None else max(end - limit, 0)
        wanted: Iterable[int] = range(first, end)
        if first < min(map(_version, self.tags)):
            wanted = sorted(version for version in self._copy.commits() if first <= version < end)
        self._copy.add(map(_commit_path, wanted), self._folder)
        return self._folder.path / _LOG, wanted

    def with_rows(self) -> DeltaTable:
        """Return this version as delta-rs opens it, to read rows.

        Raises:
            DeltaError: Another table replaced this one.
        """
        if self._whole is None:
            self._whole = self.for_writing()
        return self._whole

    def for_writing(self) -> DeltaTable:
        """Return this version as delta-rs opens it, for one commit.

        A commit moves the object to its version. Another commit on the object would not be compared
        with it.

        Raises:
            DeltaError: Another table replaced this one.
        """
        whole = DeltaTable(self._copy.uri, version=self.version())
        same = whole.metadata().id == self.metadata().id
        # fence: rows-of-the-copied-version
        if not same or sorted(whole.file_uris()) != sorted(self.file_uris()):
            raise DeltaError(f"another table replaced version {self.version()}")
        return whole

    def with_files(self, condition: str) -> DeltaTable:
        """Return this version as a table whose rows that meet a condition can be queried.

        Only for tables without payload: copies small files to the temporary folder, with one
        request each.

        Args:
            condition: An SQL condition on partition columns and columns with statistics.
        """
        if "deletionVectors" in (self.protocol().reader_features or ()):
            return self.with_rows()
        files = self.get_add_actions(flatten=True)
        sizes = {
            unquote(path): size
            for path, size in zip(
                files.column("path").to_pylist(),
                files.column("size_bytes").to_pylist(),
                strict=True,
            )
        }
        paths = self._paths(file_pruning_predicate=condition)
        if len(paths) > _COPIED_FILES or sum(sizes[path] for path in paths) > _COPIED_BYTES:
            return self.with_rows()
        self._copy.add(paths, self._folder)
        if not all(self._folder.has(path) for path in paths):
            return self.with_rows()
        if self._local is None:
            self._local = DeltaTable(self._folder.path, version=self.version())
        return self._local

    def commit(self, write: Callable[[DeltaTable], None], properties: CommitProperties) -> None:
        """Commit what a function writes to a copy of this version.

        Args:
            write: Writes with delta-rs to the table that it gets. It must read no rows.
            properties: The properties of the commit.

        Raises:
            CommitFailedError: See `create_commit`.
        """
        given = properties.max_commit_retries
        written = _Folder()
        try:
            names = (each.name for each in Path(self._folder.path, _LOG).iterdir())
            of_version = [
                name for name in names if _FILE.fullmatch(name) and _version(name) <= self.version()
            ]
            written.take(self._folder, of_version)
            table = DeltaTable(written.path)
            if table.version() != self.version():
                raise CommitFailedError(f"the copy of version {self.version()} is incomplete")
            write(table)
            with _as_delta_errors():
                self._copy.create(written.path, self, retries=_RETRIES if given is None else given)
        finally:
            written.remove()

    def create_write_transaction(
        self, *arguments: Any, commit_properties: CommitProperties, **options: Any
    ) -> None:
        """Commit actions, as `DeltaTable.create_write_transaction`."""

        def write(table: DeltaTable) -> None:
            table.create_write_transaction(
                *arguments, commit_properties=commit_properties, **options
            )

        self.commit(write, commit_properties)


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise TypeError(f"{name} needs a table of with_rows or for_writing")

    return refuse


for _name in (
    *("alter", "cleanup_metadata", "count", "create_checkpoint", "delete", "history", "load_cdf"),
    *("load_as_version", "merge", "optimize", "repair", "restore", "to_pandas", "update"),
    *("to_pyarrow_dataset", "to_pyarrow_table", "update_incremental", "vacuum"),
):
    # On the copy they would fail, or change only the copy.
    setattr(OpenedTable, _name, _refuse(_name))


def for_writing(table: DeltaTable) -> DeltaTable:
    """Return a table with which delta-rs can make one commit that reads rows."""
    return table.for_writing() if isinstance(table, OpenedTable) else table


def with_rows(table: DeltaTable) -> DeltaTable:
    """Return a table that delta-rs can query and rewrite."""
    return table.with_rows() if isinstance(table, OpenedTable) else table


def with_files(table: DeltaTable, condition: str) -> DeltaTable:
    """Return a table without payload whose rows that meet a condition can be queried."""
    return table.with_files(condition) if isinstance(table, OpenedTable) else table


def append_rows(
    table: DeltaTable, rows: Any, *, commit_properties: CommitProperties, **options: Any
) -> None:
    """Append rows in one commit, as `write_deltalake`."""

    def write(table: DeltaTable) -> None:
        write_deltalake(table, rows, mode="append", commit_properties=commit_properties, **options)

    if isinstance(table, OpenedTable):
        table.commit(write, commit_properties)
    else:
        write(table)


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
            if not isinstance(failed, _NotCopied):
                log.info("log not copied uri=%s error=%s", uri, type(failed).__name__)
                _failed_at[uri] = monotonic()
        return None


def is_copied(uri: str) -> bool:
    """Whether to open a table from a copy of its log: only one in an object store.

    False with an external lock of delta-rs, and for `_PAUSE_S` after a failure of the storage.
    """
    if "://" not in uri or uri.startswith("file:") or not _PLAIN.fullmatch(uri):
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
            copy = (
                LogCopy(uri, from_url(uri, retry_config=_TRIES), partial(from_url, uri))
                if "://" in uri
                else LogCopy(uri, LocalStore(uri), partial(LocalStore, uri))
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


@contextmanager
def _as_delta_errors() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as failed:
        raise DeltaError(str(failed)) from failed


def _plain_tag(tag: str | None) -> str:
    """Return an entity tag without quotes, which Azure adds only to some answers."""
    return (tag or "").strip('"')


def _for_each(do: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call a function with each item, concurrently; raises the first error."""
    with ThreadPoolExecutor(_CONCURRENT_READS) as threads:
        list(threads.map(do, items))


def _version(name: str) -> int:
    return int(name[:20])


def _commit_path(version: int) -> str:
    return f"{_LOG}/{version:020}.json"


def _newest_checkpoint(names: Iterable[str]) -> int | None:
    """Return the version of the newest checkpoint with all of its parts."""
    parts = Counter(
        (_version(name), int(found[2] or 1))
        for name in names
        if "checkpoint" in name and (found := _FILE.fullmatch(name))
    )
    complete = (version for (version, needed), count in parts.items() if count == needed)
    return max(complete, default=None)


def _check_contiguous(names: Iterable[str], checkpoint: int | None) -> None:
    """Raise `_NotCopied` if a commit after the checkpoint is missing.

    Without a checkpoint, the commits must begin with version 0.
    """
    commits = {_version(name) for name in names if name.endswith(".json")}
    first = 0 if checkpoint is None else checkpoint + 1
    later = {version for version in commits if version >= first}
    if len(later) != max(later, default=first - 1) - first + 1:
        raise _NotCopied

"""Versions of tables in object stores, which delta-rs opens from a copy of their log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tidemark.delta.deletion_vectors import may_have_deletion_vectors
from tidemark.delta.delta_errors import is_full
from tidemark.delta.log_folders import LogFolder, commit_path, version_of
from tidemark.delta.store_commits import OvertakenCommit, as_delta_errors

if TYPE_CHECKING:
    from tidemark.delta.log_copies import LogCopy

log = logging.getLogger(__name__)

_COPIED_BYTES = 8 * 1024 * 1024
"""Maximum total size of the data files that are copied for a query."""
_COPIED_FILES = 64
"""Maximum number of these files."""
_RETRIES = 15
"""Retries of a commit after independent commits; the default of delta-rs."""

Tags: TypeAlias = Mapping[str, str]
"""Entity tags of files of a log, by file name. Files with different contents have other tags."""


class OpenedTable(DeltaTable):  # type: ignore[misc]  # without types
    """One version of a table in an object store. Reading the state in its log needs no request.

    Args:
        copy: The copy of the log.
        folder: The folder of the copy.
        tags: The files of the log at this version.
    """

    def __init__(self, copy: LogCopy, folder: LogFolder, tags: Tags) -> None:
        super().__init__(folder.path, version=max(map(version_of, tags)))
        self._copy = copy
        self._folder = folder
        self.tags = tags
        self._whole: DeltaTable | None = None
        self._local: DeltaTable | None = None

    def is_complete(self) -> bool:
        """Whether the copy still has all files of the log. Another program may remove some."""
        return self.tags.keys() <= set(self._folder.log_until(self.version()))

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

    def versions_from(self, first: int) -> Sequence[int]:
        """Return the versions whose commits are in the log, from `first` on."""
        end = self.version() + 1
        if first >= min(map(version_of, self.tags)):
            return range(first, end)
        with as_delta_errors():
            return sorted(version for version in self._copy.commits() if first <= version < end)

    def log_of(self, versions: Iterable[int]) -> Path:
        """Return a folder with the log, and with those of the given commits that exist."""
        with as_delta_errors():
            self._copy.add(map(commit_path, versions), self._folder)
        return self._folder.path

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

    @contextmanager
    def queried(self, condition: str) -> Iterator[DeltaTable]:
        """Yield this version as a table, for queries of the rows that meet a condition.

        Other rows may be in files that were not copied. Small files are copied to a temporary
        folder until the block ends, with one request each.

        Args:
            condition: An SQL condition. Only conditions on partition columns and on columns with
                statistics exclude files.
        """
        with ExitStack() as until_end:
            yield self._copied_rows(condition, until_end) or self.with_rows()

    def _copied_rows(self, condition: str, until_end: ExitStack) -> DeltaTable | None:
        """Copy log and small files to a folder of their own; None if they cannot be copied."""
        paths = self._small_files(condition)
        if paths is None:
            return None
        try:
            folder = LogFolder()
            until_end.callback(folder.remove)
            if self._has_copied(paths, self._copy.add, folder):
                folder.take(self._folder, self._folder.log_until(self.version()))
                return DeltaTable(folder.path, version=self.version())
        except (OSError, DeltaError) as failed:
            log.info("log not copied error=%s", type(failed).__name__)
        return None

    def with_files(self, condition: str) -> DeltaTable:
        """Return this version as a table, for queries of the rows that meet a condition.

        Only for tables without payload: small files are kept on this machine, for later processes.

        Args:
            condition: As for `queried`.
        """
        keep = partial(self._copy.keep, live=self._paths)
        paths = self._small_files(condition)
        if paths is None or not self._has_copied(paths, keep, self._folder):
            return self.with_rows()
        if self._local is None:
            self._local = DeltaTable(self._folder.path, version=self.version())
        return self._local

    @staticmethod
    def _has_copied(
        paths: Collection[str], copy: Callable[[Collection[str], LogFolder], None], to: LogFolder
    ) -> bool:
        """Copy data files, and return whether the folder has all of them.

        After a failure, delta-rs reads the table itself, or reports the error.
        """
        try:
            copy(paths, to)
        except Exception as failed:  # noqa: BLE001
            log.info("data files not copied error=%s", type(failed).__name__)
        return all(to.has(path) for path in paths)

    def _small_files(self, condition: str) -> list[str] | None:
        """Return the files that may have rows that meet a condition.

        Returns:
            None if these files are many, large or in other folders, or if a file may have a
            deletion vector.
        """
        if may_have_deletion_vectors(self):
            return None
        files = self.get_add_actions(flatten=True)
        sizes = dict(
            zip(
                map(unquote, files.column("path").to_pylist()),
                files.column("size_bytes").to_pylist(),
                strict=True,
            )
        )
        try:
            paths = self._paths(file_pruning_predicate=condition)
        except DeltaError:
            # A condition on a list or a map excludes no file.
            paths = self._paths()
        if len(paths) > _COPIED_FILES or not sizes.keys() >= set(paths):
            # The files of a shallow clone are in the folder of another table.
            return None
        return paths if sum(sizes[path] for path in paths) <= _COPIED_BYTES else None

    def commit(self, write: Callable[[DeltaTable], None], properties: CommitProperties) -> None:
        """Commit what a function writes to a copy of this version.

        Args:
            write: Writes with delta-rs to the given table. Must read no rows. If the temporary
                folder is full, it is called again with the table itself.
            properties: The properties of the commit.

        Raises:
            OvertakenCommit: See `create_commit`.
            CommitFailedError: delta-rs cannot make the commit.
        """
        given = properties.max_commit_retries
        with ExitStack() as until_end:
            try:
                written = self._written(write, until_end)
            except (OSError, DeltaError) as failed:
                if not is_full(failed):
                    raise
                # Nothing is in the store yet, so delta-rs can make the commit itself.
                write(self.for_writing())
                return
            with as_delta_errors():
                self._copy.create(written, self, retries=_RETRIES if given is None else given)

    def _written(self, write: Callable[[DeltaTable], None], until_end: ExitStack) -> Path:
        """Let a function write to a copy of the log. Returns the folder of the copy."""
        written = LogFolder()
        until_end.callback(written.remove)
        written.take(self._folder, self._folder.log_until(self.version()))
        table = DeltaTable(written.path)
        if table.version() != self.version():
            raise OvertakenCommit(f"the copy of version {self.version()} is incomplete")
        write(table)
        return written.path

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
    *("scan", "to_pyarrow_dataset", "to_pyarrow_table", "update_incremental", "vacuum"),
):
    # On the copy, these methods would fail, or change only the copy.
    setattr(OpenedTable, _name, _refuse(_name))


def for_writing(table: DeltaTable) -> DeltaTable:
    """Return a table with which delta-rs can make one commit that reads rows."""
    return table.for_writing() if isinstance(table, OpenedTable) else table


def with_rows(table: DeltaTable) -> DeltaTable:
    """Return a table that delta-rs can query and rewrite."""
    return table.with_rows() if isinstance(table, OpenedTable) else table


def with_files(table: DeltaTable, condition: str) -> DeltaTable:
    """Return a table without payload, for queries of the rows that meet a condition."""
    return table.with_files(condition) if isinstance(table, OpenedTable) else table


@contextmanager
def queried(table: DeltaTable, condition: str = "true") -> Iterator[DeltaTable]:
    """Yield a table, which may have payload, for queries of the rows that meet a condition."""
    if isinstance(table, OpenedTable):
        with table.queried(condition) as rows:
            yield rows
    else:
        yield table


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

"""The log of a table: Tidemark's metadata of its commits, and RESTOREs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.core.plan import Plan
from tidemark.core.table_state import Restore
from tidemark.delta.copied_tables import OpenedTable
from tidemark.delta.live_files import table_filesystem
from tidemark.delta.log_folders import LOG, commit_path

_RECENT_COMMITS = 50

_SEARCHED_VERSIONS = 1_000
"""Versions before a RESTORE by timestamp that may be the restored one."""

_NEUTRAL_OPERATIONS = {
    *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "COMPUTE STATS", "UPGRADE PROTOCOL"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE TABLE METADATA", "SET TABLE PROPERTIES"),
    *("ADD COLUMN", "ADD COLUMNS", "CHANGE COLUMN", "ADD FEATURE", "CREATE TABLE"),
}
"""Delta operations that change no row of a table."""
_NEUTRAL_KEYS = {"added", "abandoned", "compacted", "fenced"}
"""Metadata keys of Tidemark's commits that change no row."""


def history(table: DeltaTable | CommitHistory, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the information of the newest commits, with their versions, newest first.

    `DeltaTable.history` counts versions down from the opened one, so it returns wrong versions if
    another process has committed since.

    Args:
        table: The table.
        limit: Number of versions; None for all that the log has.
    """
    if isinstance(table, CommitHistory):
        return list(table.history(limit))
    found = []
    for version, content in _commits(table, limit):
        # A commit can have thousands of other actions.
        lines = (line for line in content.splitlines() if _COMMIT_INFO.match(line))
        information = json.loads(next(lines, b'{"commitInfo": {}}'))["commitInfo"]
        found.append({**information, "version": version})
    return found[::-1]


_COMMIT_INFO = re.compile(rb'\s*\{\s*"commitInfo"')


def commit_digest(table: DeltaTable, version: int) -> str | None:
    """Return the SHA-256 of the commit file of a version; None without the file.

    Two commits of one version differ, by their times and by the unique names of their files.
    """
    found = dict(_contents(table, [version]))
    return sha256(found[version]).hexdigest() if found else None


def _commits(table: DeltaTable, limit: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the content of commits, oldest first; omit those that the log lacks."""
    end = table.version() + 1
    first = 0 if limit is None else max(end - limit, 0)
    versions: Sequence[int] = range(first, end)
    if isinstance(table, OpenedTable):
        versions = table.versions_from(first)
    elif limit is None and (folder := _local_folder(table)):
        found = (int(file.stem) for file in folder.glob(f"{LOG}/{'[0-9]' * 20}.json"))
        versions = sorted(version for version in found if version < end)
    return _contents(table, versions)


def _contents(table: DeltaTable, versions: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the content of some commits; omit those that the log lacks."""
    read = _reader(table, versions)
    for version in versions:
        try:
            content = read(commit_path(version))
        except FileNotFoundError:
            continue
        yield version, content


def _reader(table: DeltaTable, versions: Sequence[int]) -> Callable[[str], bytes]:
    folder = table.log_of(versions) if isinstance(table, OpenedTable) else _local_folder(table)
    if folder:
        return lambda path: Path(folder, path).read_bytes()
    storage = table_filesystem(table.table_uri)

    def read(path: str) -> bytes:
        with storage.open_input_stream(path) as commit:
            content: bytes = commit.read()
            return content

    return read


def _local_folder(table: DeltaTable) -> Path | None:
    """Return the folder of a table; None if it is not on a local disk."""
    address = urlsplit(table.table_uri)
    return Path(unquote(address.path)) if address.scheme in ("", "file") else None


class CommitHistory:
    """The commits of a loaded table; reads each of them once.

    Args:
        table: The table.
    """

    def __init__(self, table: DeltaTable) -> None:
        self._table = table
        self._commits: Sequence[dict[str, Any]] = ()
        self._limit: int | None = 0

    @property
    def table_uri(self) -> str:
        """The URI of the table."""
        return str(self._table.table_uri)

    def version(self) -> int:
        """Return the version of the loaded table."""
        return int(self._table.version())

    def history(self, limit: int | None = None) -> Sequence[dict[str, Any]]:
        """Return the newest commits, newest first; all of them without a limit."""
        if self._limit is not None and (limit is None or limit > self._limit):
            self._commits, self._limit = history(self._table, limit), limit
        return self._commits[:limit]


def restores_since(table: DeltaTable | CommitHistory, version: int) -> tuple[Restore, ...]:
    """Return the RESTOREs after a version, newest first."""
    commits = table.version() - version
    if commits <= 0:
        return ()
    return tuple(
        Restore(at=commit["version"], to=_restored_version(table, commit))
        for commit in history(table, commits)
        if commit.get("operation") == "RESTORE"
    )


def _restored_version(table: DeltaTable | CommitHistory, commit: Mapping[str, Any]) -> int:
    """Return the version that a RESTORE restored; 0 if the log does not show it.

    A RESTORE by timestamp does not contain the version. Spark writes its timestamp without a time
    zone. So the newest earlier version with the same files is looked for.
    """
    version = _parameters(commit).get("version")
    if version is not None:
        return int(version)
    at = int(commit["version"])
    try:
        restored = _files_of(table.table_uri, at)
        for earlier in range(at - 1, max(at - _SEARCHED_VERSIONS, 0) - 1, -1):
            if _files_of(table.table_uri, earlier) == restored:
                return earlier
    except DeltaError:
        pass
    return 0


def _files_of(uri: str, version: int) -> frozenset[str]:
    return frozenset(DeltaTable(uri, version=version).file_uris())


def _parameters(commit: Mapping[str, Any]) -> Mapping[str, Any]:
    return commit.get("operationParameters") or {}


def plan_commits(
    table: DeltaTable | CommitHistory,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Iterate over versions that landed a plan, with their metadata, newest first.

    Reads older commits only if the caller needs more than the recent ones.
    """
    recent = history(table, _RECENT_COMMITS)
    yield from _of_plans(recent)
    if len(recent) == _RECENT_COMMITS:
        yield from _of_plans(history(table)[_RECENT_COMMITS:])


def _of_plans(commits: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return (commit for commit in commits_with_metadata(commits) if "fingerprint" in commit[1])


def commits_with_metadata(
    commits: Sequence[dict[str, Any]],
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Iterate over the versions whose commit has a JSON object as metadata, newest first."""
    for commit in commits:
        try:
            metadata = json.loads(commit.get("userMetadata") or "null")
        except (ValueError, RecursionError):
            # Another program wrote it.
            continue
        if isinstance(metadata, dict):
            yield commit["version"], metadata


def changes_no_rows(commit: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return True if a commit changed no row, by its operation or its metadata."""
    return commit.get("operation") in _NEUTRAL_OPERATIONS or bool(metadata.keys() & _NEUTRAL_KEYS)


def may_have_changed_rows(table: DeltaTable, since: int) -> bool:
    """Return whether commits of a table after a version may have added or removed rows.

    A commit without such a change adds and removes no file, or only moves rows between files, as a
    compaction does. Delta marks these files with `dataChange`.

    Args:
        table: The table.
        since: The version.

    Returns:
        True also if the log lacks one of the commits.
    """
    for version in range(table.version(), since, -1):
        content = dict(_contents(table, [version])).get(version)
        if content is None or any(map(_changes_data, content.splitlines())):
            return True
    return False


def _changes_data(line: bytes) -> bool:
    """Return whether a line of a commit adds or removes a file with a change of rows."""
    if not _FILE_ACTION.match(line):
        return False
    (action,) = json.loads(line).values()
    # The protocol requires the field. Without it, the change is unknown.
    return bool(action.get("dataChange", True))


_FILE_ACTION = re.compile(rb'\s*\{\s*"(add|remove)"')


def has_transaction(table: DeltaTable, plan: Plan) -> bool:
    """Return True if the table contains the plan's transaction, of a landing or of a fence."""
    return (table.transaction_version(plan.app_id) or 0) >= plan.sequence


def is_of_transaction(metadata: Mapping[str, Any], plan: Plan) -> bool:
    """Return True if a commit has the plan's transaction, with any fingerprint."""
    return (
        metadata.get("pipeline") == plan.pipeline
        and metadata.get("sequence") == plan.sequence
        and metadata.get("epoch") == plan.epoch
        and metadata.get("kind") == plan.kind.value
    )

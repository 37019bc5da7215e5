"""The log of a table: Tidemark's metadata of its commits, and RESTOREs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.core.plan import Plan
from tidemark.core.table_state import Restore

_RECENT_COMMITS = 50

_SEARCHED_VERSIONS = 1_000
"""Versions before a RESTORE by timestamp that may be the restored one."""

_NEUTRAL_OPERATIONS = {
    *("OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS", "UPGRADE PROTOCOL"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE TABLE METADATA", "SET TABLE PROPERTIES"),
    *("ADD COLUMN", "ADD COLUMNS", "CHANGE COLUMN", "ADD FEATURE", "CREATE TABLE"),
}
"""Delta operations that change no row of a table."""
_NEUTRAL_KEYS = {"added", "abandoned", "compacted", "fenced"}
"""Metadata keys of Tidemark's commits that change no row."""


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
            self._commits, self._limit = self._table.history(limit), limit
        return self._commits[:limit]


def restores_since(table: DeltaTable | CommitHistory, version: int) -> tuple[Restore, ...]:
    """Return the RESTOREs after a version, newest first."""
    commits = table.version() - version
    if commits <= 0:
        return ()
    return tuple(
        Restore(at=commit["version"], to=_restored_version(table, commit))
        for commit in table.history(commits)
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
    recent = table.history(_RECENT_COMMITS)
    yield from _of_plans(recent)
    if len(recent) == _RECENT_COMMITS:
        yield from _of_plans(table.history()[_RECENT_COMMITS:])


def _of_plans(history: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return (commit for commit in commits_with_metadata(history) if "fingerprint" in commit[1])


def commits_with_metadata(
    history: Sequence[dict[str, Any]],
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Iterate over the versions whose commit has a JSON object as metadata, newest first."""
    for commit in history:
        try:
            metadata = json.loads(commit.get("userMetadata") or "null")
        except json.JSONDecodeError:
            continue
        if isinstance(metadata, dict):
            yield commit["version"], metadata


def changes_no_rows(commit: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return True if a commit changed no row, by its operation or its metadata."""
    return commit.get("operation") in _NEUTRAL_OPERATIONS or bool(metadata.keys() & _NEUTRAL_KEYS)


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

"""The log of a table: Tidemark's metadata of its commits, and RESTOREs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable

from tidemark.core.plan import Plan
from tidemark.core.table_state import Restore

_RECENT_COMMITS = 50

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
        # A RESTORE by timestamp does not contain the version: assume the first one.
        Restore(at=commit["version"], to=int(_parameters(commit).get("version") or 0))
        for commit in table.history(commits)
        if commit.get("operation") == "RESTORE"
    )


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

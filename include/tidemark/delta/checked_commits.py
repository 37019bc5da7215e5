"""Commits to a Delta table that depend on its newest version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from tenacity import before_sleep_log, retry, retry_if_exception_type, stop_after_attempt

from tidemark.core.errors import TidemarkError
from tidemark.delta.delta_errors import tidemark_error
from tidemark.delta.errors import EngineFailed
from tidemark.delta.store_commits import OvertakenCommit
from tidemark.delta.table_io import newest_table

log = logging.getLogger(__name__)

COMMITS_TRIED = 20
"""Tries of a commit. Each takes milliseconds, and fails if another commit follows its check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The changes of a commit.

    Attributes:
        actions: Added and removed files.
        metadata: Text for the commit's `userMetadata`.
        count: The number that `commit_checked` returns.
        transactions: Transactions of the commit.
        is_needed: Whether to commit even without actions.
    """

    actions: Sequence[AddAction | RemoveAction]
    metadata: str
    count: int
    transactions: Sequence[Transaction] = ()
    is_needed: bool = False


@retry(
    retry=retry_if_exception_type(CommitFailedError),
    stop=stop_after_attempt(COMMITS_TRIED),
    before_sleep=before_sleep_log(log, logging.INFO),
    reraise=True,
)
def commit_checked(uri: str, changes: Callable[[DeltaTable], Change]) -> int:
    """Commit changes as the version right after the version that they were made from.

    Args:
        uri: The table.
        changes: Returns the changes to the newest version; called again if another commit comes
            first. Raises an error to refuse the commit.

    Returns:
        `Change.count` of the committed changes.

    Raises:
        CommitFailedError: Another commit came first at every try.
    """
    table = DeltaTable(uri)
    change = changes(table)
    if change.actions or change.is_needed:
        _commit(table, change)
    return change.count


def is_overtaken(failed: Exception, uri: str, version: int) -> bool:
    """Return whether another commit is the reason why a commit was refused.

    delta-rs raises the same exception for a commit that it can never make.

    Args:
        failed: The exception of the commit.
        uri: The table.
        version: The version from which the commit was made.

    Raises:
        DeltaError: The table cannot be opened.
    """
    if not isinstance(failed, CommitFailedError):
        return False
    return isinstance(failed, OvertakenCommit) or bool(newest_table(uri).version() != version)


def refused_commit(
    failed: Exception,
    uri: str,
    version: int,
    operation: str,
    conflict: Callable[[str], TidemarkError],
) -> TidemarkError:
    """Return the named error of a failed commit.

    Args:
        failed: The exception of the commit.
        uri: The table.
        version: The version from which the commit was made.
        operation: The operation, in the form "landing plan 3".
        conflict: Returns the error if another commit came first, from the reason of delta-rs.

    Raises:
        DeltaError: The table cannot be opened.
    """
    error = tidemark_error(failed, uri, operation)
    if isinstance(error, EngineFailed) and is_overtaken(failed, uri, version):
        return conflict(error.reason)
    return error


def _commit(table: DeltaTable, change: Change) -> None:
    """Commit as the next version; fails if another commit created it."""
    table.create_write_transaction(
        list(change.actions),
        "append",
        table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=CommitProperties(
            max_commit_retries=0,  # fence: checked-commit-follows-its-check
            app_transactions=list(change.transactions),
            custom_metadata={"userMetadata": change.metadata},
        ),
    )

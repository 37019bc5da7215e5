"""Finds the files with rows of a plan, and removes the files or the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from deltalake import DeltaTable, Transaction

from tidemark.core.plan import Plan, plan_removal_app_id, removal_app_id
from tidemark.core.table_state import FENCED_VERSION
from tidemark.delta.checked_commits import Change, commit_checked
from tidemark.delta.errors import RemovalFenced
from tidemark.delta.live_files import LiveFile, live_files, unsupported_files


def removal_transactions(
    table: DeltaTable, plan: Plan, epoch: int, *, is_last: bool
) -> list[Transaction]:
    """Return the transactions of a commit that removes rows of a plan.

    Args:
        table: The version that the commit follows.
        plan: The plan.
        epoch: The epoch of the decision.
        is_last: Whether the table has no rows of the plan after this commit.

    Raises:
        RemovalFenced: A repair has fenced the epoch.
    """
    app_id = removal_app_id(plan.pipeline, epoch)
    _newest_removal(table, plan, app_id)
    # Removals of other plans overwrite the transaction of the epoch, but not that of the plan.
    own = plan_removal_app_id(plan.pipeline, epoch, plan.sequence)
    complete = [Transaction(own, 1)] if is_last else []
    # fence: removal-is-a-transaction
    return [Transaction(app_id, plan.sequence), *complete]


def _newest_removal(table: DeltaTable, plan: Plan, app_id: str) -> int:
    """Return the version of an epoch's newest removal; raise if a repair has fenced the epoch."""
    newest = table.transaction_version(app_id) or 0
    if newest >= FENCED_VERSION:  # fence: older-removals-are-fenced
        raise RemovalFenced(pipeline=plan.pipeline, sequence=plan.sequence)
    return newest


def is_removal_complete(table: DeltaTable, plan: Plan, epoch: int) -> bool:
    """Return whether the last commit of a removal in an epoch was made."""
    own = plan_removal_app_id(plan.pipeline, epoch, plan.sequence)
    return table.transaction_version(own) is not None


def files_with_plan(table: DeltaTable, sequence: int) -> tuple[list[LiveFile], list[LiveFile]]:
    """Return the files with rows of one plan only, and files that may also have other rows.

    Decides by the statistics. Compaction writes files of the second kind.
    """
    whole, mixed = [], []
    for file in live_files(table):
        least, most = (file.bounds[name].get("plan_sequence") for name in ("min", "max"))
        if least == most == sequence and file.records is not None:
            whole.append(file)
        elif least is None or most is None or least <= sequence <= most:
            mixed.append(file)
    return whole, mixed


def may_have_plan(table: DeltaTable, sequence: int) -> bool:
    """Return whether a version of a table may have rows of a plan."""
    return bool(
        unsupported_files(table, live_files(table)) or any(files_with_plan(table, sequence))
    )


def remove_whole_files(
    uri: str,
    sequence: int,
    metadata: str,
    check: Callable[[DeltaTable, bool], Sequence[Transaction]],
) -> tuple[int, int | None]:
    """Remove the files with rows of one plan only, in one commit, without reading them.

    Args:
        uri: The table.
        sequence: The plan.
        metadata: Text for the commit's `userMetadata`.
        check: Called with the version that the commit follows, and with whether no rows of the
            plan remain after it. Returns the transactions of the commit, or refuses it by an error.

    Returns:
        The number of their rows, and the version of the commit; None if there are no such files.
    """
    version: int | None = None

    def removal(table: DeltaTable) -> Change:
        nonlocal version
        whole, mixed = files_with_plan(table, sequence)
        is_last = not (mixed or unsupported_files(table, live_files(table)))
        transactions = check(table, is_last)
        version = table.version() + 1 if whole else None
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        return Change(
            actions=[file.removal(now_ms, data_change=True) for file in whole],
            metadata=metadata,
            count=sum(file.records or 0 for file in whole),
            transactions=transactions,
        )

    return commit_checked(uri, removal), version

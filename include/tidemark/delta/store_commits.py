"""Commits to tables in object stores: the conditional creation of the next file of the log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from deltalake.exceptions import CommitFailedError, DeltaError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MODE: Literal["create", "overwrite"] = "create"  # fence: store-commit-creates-its-version
_UNFINISHED = 20
"""Most answers that a file exists which cannot be read."""
_UNFINISHED_S = 0.2
_CHANGES_TABLE = {"metaData", "protocol", "domainMetadata"}
"""Actions after which an earlier check of the table no longer holds."""


class OvertakenCommit(CommitFailedError):  # type: ignore[misc]  # without types
    """A commit of another process came first, or another table replaced the table."""


def create_commit(store: ObjectStore, version: int, content: bytes, *, retries: int) -> int:
    """Create a commit file, at the given version or the next free one. Returns the version.

    Args:
        store: The folder of the table.
        version: The version after the one that the commit was made from.
        content: The actions, one JSON object per line.
        retries: Number of independent commits of other processes that this commit may follow. A
            commit is independent of an append if it has none of the append's transactions, removes
            no rows, and changes neither columns nor properties. A removal depends on all commits.

    Raises:
        OvertakenCommit: A commit of another process came first.
    """
    from obstore.exceptions import AlreadyExistsError

    own = _actions(content)
    # One of two equal commits must fail, such as two fences in one millisecond.
    own[0].setdefault("commitInfo", {})["txnId"] = str(uuid4())
    content = b"\n".join(json.dumps(action).encode() for action in own)
    retried = unfinished = 0
    while True:
        path = f"_delta_log/{version + retried:020}.json"
        try:
            store.put(path, content, mode=_MODE)
        except AlreadyExistsError:
            try:
                other = bytes(store.get(path).bytes())
            except FileNotFoundError:
                # S3 answers so while another creation of the file is unfinished.
                unfinished += 1
                if unfinished > _UNFINISHED:
                    raise
                time.sleep(_UNFINISHED_S)
                continue
            # With equal content, an earlier attempt succeeded, and its answer was lost.
            if other != content:
                reason = _conflict(own, _actions(other))
                if reason is None and retried < retries:
                    retried += 1
                    continue
                raise OvertakenCommit(
                    f"another commit was first, version {version + retried}: {reason or 'no retry'}"
                ) from None
        return version + retried


@contextmanager
def as_delta_errors() -> Iterator[None]:
    """Raise errors of the storage as errors of delta-rs."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as failed:
        raise DeltaError(str(failed)) from failed


def _actions(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def _conflict(own: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> str | None:
    """Return why a commit cannot follow a concurrent one; None if it can."""
    if any(action.keys() & {*_CHANGES_TABLE, "remove", "cdc"} for action in own):
        return "this commit depends on all rows"
    if any(action.keys() & _CHANGES_TABLE for action in other):
        return "it changed the table"
    if any(action["remove"].get("dataChange", True) for action in other if "remove" in action):
        return "it removed rows"
    if _values(own, "txn", "appId") & _values(other, "txn", "appId"):
        return "it has the same transaction"
    # These values depend on the previous commit.
    if _values(own, "commitInfo", "inCommitTimestamp") or _values(own, "add", "baseRowId"):
        return "this commit has values that depend on the previous version"
    return None


def _values(actions: Sequence[dict[str, Any]], kind: str, name: str) -> set[Any]:
    found = (action[kind].get(name) for action in actions if kind in action)
    return {value for value in found if value is not None}

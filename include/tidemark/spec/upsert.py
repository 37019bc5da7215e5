"""The spec of an upsert table, and which records a merge must read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from tidemark.core.offsets import SpanSet, difference_by_partition, union_by_partition
from tidemark.core.plain import record_of
from tidemark.core.table_state import TableChanges

_PAYLOAD = "payload"


class Deletes(StrEnum):
    """How a merge treats a key whose newest record is a deletion."""

    SOFT = "soft"
    """Keep the row with its last content, and mark it as deleted."""
    HARD = "hard"
    """Remove the row. The typed table still has its records."""


class Envelope(StrEnum):
    """The structure around the content of a value."""

    NONE = "none"
    """The value is the content. A missing value is a deletion."""
    DEBEZIUM = "debezium"
    """The content is the field `after`. The field `op` marks deletions."""
    UNWRAPPED = "debezium_unwrapped"
    """The value is the content. Its field `__deleted` is "true" for a deletion.

    Debezium's ExtractNewRecordState writes this form with `delete.handling.mode=rewrite`.
    """

    @property
    def operation(self) -> str | None:
        """The field that every value has. It distinguishes deletions from content."""
        return {Envelope.DEBEZIUM: "op", Envelope.UNWRAPPED: "__deleted"}.get(self)

    @property
    def fields(self) -> frozenset[str]:
        """The fields that values must have."""
        if self is Envelope.DEBEZIUM:
            return frozenset({"after", "op"})
        return frozenset({self.operation} if self.operation else ())

    def path_in(self, value: Mapping[str, Collection[str]]) -> tuple[str, ...] | None:
        """Return the path of the envelope in a value; None if the value has no such envelope.

        Connect's JsonConverter with `schemas.enable=true`, its default, writes an object of
        `schema` and `payload`. Then the envelope is the payload.

        Args:
            value: The fields of the value, each with the names of the fields inside.
        """
        if self.fields <= value.keys():
            return ()
        return (_PAYLOAD,) if self.fields <= set(value.get(_PAYLOAD, ())) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertSpec:
    """How a pipeline makes an upsert table from its typed table.

    Attributes:
        target: Path of the upsert table, in the form of a pipeline's `target`.
        deletes: How a merge treats a key whose newest record is a deletion.
        envelope: The structure around the content of a value.
        flattens: Whether the top-level fields of values are columns of the typed table, and those
            of contents columns of the upsert table.
    """

    target: str
    deletes: Deletes = Deletes.SOFT
    envelope: Envelope = Envelope.NONE
    flattens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMerge:
    """The last merge into an upsert table.

    Attributes:
        typed_version: Version of the typed table that the merge read.
        typed_commit: Digest of the commit of that version; None if it is unknown.
        definition: Definition of a row, as returned by `row_definition`.
        app_id: Application id of the merge's Delta transaction. The next merge uses it again.
    """

    typed_version: int
    typed_commit: str | None
    definition: str
    app_id: str


_DEFINITION = 2
"""Increase this number if the code makes different rows of the same typed rows: the next merge then
rebuilds every upsert table."""


def row_definition(spec: UpsertSpec, incarnations: Sequence[str]) -> str:
    """Return the definition of a row in JSON; if it changes, a merge must read all records.

    Args:
        spec: The spec of the upsert table.
        incarnations: Topic ids, oldest first.
    """
    rules = [str(spec.deletes), str(spec.envelope), *(["flatten"] if spec.flattens else [])]
    return json.dumps([_DEFINITION, *rules, list(incarnations)])


class MergeScope(StrEnum):
    """Which records a merge reads."""

    NEW = "new records"
    """The records since the last merge, which are newer than all records that it read."""
    KEYS = "affected keys"
    """All records of the keys that have changed."""
    ALL = "all records"
    """All records: the merge rebuilds the table, because the changes are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """One merge that brings an upsert table up to date.

    Attributes:
        scope: Which records the merge reads.
        since: Version of the typed table that the last merge read; None for a rebuild.
        version: Version of the typed table to read.
        changes: Changes between the two versions; empty for a rebuild.
        incarnations: Topic ids, oldest first.
        typed_commit: Digest of the commit of `version`; None if it is unknown.
        definition: Definition of a row, as returned by `row_definition`.
        app_id: Application id of the merge's Delta transaction. A rebuild starts a new one, and the
            merges after it use it again.
        is_first: Whether the upsert table does not exist yet.
        last_read: Version of the typed table that the newest merge read, also before a rebuild.
            None if it is unknown; -1 if that merge read another typed table.
    """

    scope: MergeScope
    since: int | None
    version: int
    changes: TableChanges
    incarnations: tuple[str, ...]
    typed_commit: str | None
    definition: str
    app_id: str
    is_first: bool = False
    last_read: int | None = None

    def as_rebuild(self) -> Self:
        """Return the same merge with all records as its scope.

        The merge keeps its transaction. If a concurrent merge has read a newer version, Delta skips
        this one.
        """
        return replace(self, scope=MergeScope.ALL, since=None, changes=TableChanges())

    def commit_metadata(self) -> str:
        """Return the JSON that the commit of the merge stores, for the next merge and lineage."""
        own = record_of(self, without={"changes", "incarnations", "is_first", "last_read"})
        return json.dumps({"merge": {**own, **self._plans_as_record()}})

    def as_record(self) -> dict[str, Any]:
        """Return the merge as plain values, for `--json`."""
        return {
            "scope": str(self.scope),
            "since": self.since,
            "typed_version": self.version,
            **self._plans_as_record(),
        }

    def _plans_as_record(self) -> dict[str, Any]:
        changes = self.changes
        return {
            "plans": [plan.sequence for plan in (*changes.appended, *changes.replaced)],
            "undone": list(changes.removed),
        }


def merge_scope(
    changes: TableChanges | None,
    landed: Mapping[str, Mapping[int, SpanSet]],
    incarnations: Sequence[str],
) -> MergeScope:
    """Return which records a merge must read so that no row goes back to an older record.

    Args:
        changes: Changes of the typed table since the last merge; None if they are unknown.
        landed: All landed offsets of the typed table, by topic id and partition.
        incarnations: Topic ids, oldest first.
    """
    if changes is None:
        return MergeScope.ALL
    if changes.replaced or changes.removed:
        return MergeScope.KEYS
    new: dict[str, Mapping[int, SpanSet]] = {}
    for plan in changes.appended:
        new[plan.topic_id] = union_by_partition([new.get(plan.topic_id, {}), plan.spans()])
    for topic_id, spans in new.items():
        before = difference_by_partition(landed.get(topic_id, {}), spans)
        newer = [
            each for each in incarnations[incarnations.index(topic_id) + 1 :] if landed.get(each)
        ]
        # fence: older-records-merge-by-all-keys
        is_older = any(
            partition in before and each.spans[0].start < before[partition].spans[-1].end
            for partition, each in spans.items()
        )
        if newer or is_older:
            return MergeScope.KEYS
    return MergeScope.NEW

"""The spec of an upsert table, and which records a merge must read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from tidemark.core.bookmark import TypedChanges
from tidemark.core.offsets import SpanSet, difference_by_partition, size_of_all
from tidemark.core.plain import record_of

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
        deletion_vectors: Whether merges mark replaced rows as removed instead of rewriting their
            files. Readers must support Delta's deletion vectors.
    """

    target: str
    deletes: Deletes = Deletes.SOFT
    envelope: Envelope = Envelope.NONE
    flattens: bool = False
    deletion_vectors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMerge:
    """The last merge into an upsert table.

    Attributes:
        typed_version: Version of the typed table that the merge read.
        typed_commit: Digest of the commit of that version; None if it is unknown.
        definition: Definition of a row, as returned by `row_definition`.
        incarnations: Topic ids of the typed rows, oldest first.
        app_id: Application id of the merge's Delta transaction. The next merge uses it again.
    """

    typed_version: int
    typed_commit: str | None
    definition: str
    incarnations: tuple[str, ...]
    app_id: str


_DEFINITION = 2
"""Increase this number if the code makes different rows of the same typed rows: the next merge then
rebuilds every upsert table."""


def row_definition(spec: UpsertSpec) -> str:
    """Return the definition of a row in JSON; if it changes, a merge must read all records."""
    rules = [str(spec.deletes), str(spec.envelope), *(["flatten"] if spec.flattens else [])]
    return json.dumps([_DEFINITION, *rules])


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
        withdrawn: Number of offsets whose rows were removed between them and not decoded again.
        incarnations: Topic ids of the typed rows, oldest first.
        typed_commit: Digest of the commit of `version`; None if it is unknown.
        definition: Definition of a row, as returned by `row_definition`.
        app_id: Application id of the merge's Delta transaction. A rebuild starts a new one, and the
            merges after it use it again.
        upsert_version: Version of the upsert table before the merge; -1 without a table.
        last_read: Version of the typed table that the newest merge read, also before a rebuild.
            None if it is unknown; -1 if that merge read another typed table.
    """

    scope: MergeScope
    since: int | None
    version: int
    changes: TypedChanges
    withdrawn: int
    incarnations: tuple[str, ...]
    typed_commit: str | None
    definition: str
    app_id: str
    upsert_version: int
    last_read: int | None = None

    @property
    def is_renewal(self) -> bool:
        """Whether no row of the typed table has changed since the last merge.

        Such a merge changes no row. It only stores the later version of the typed table, because
        the log of that table keeps the earlier one for a limited time.
        """
        return self.since is not None and not self.changes

    def as_rebuild(self) -> Self:
        """Return the same merge with all records as its scope.

        The merge keeps its transaction. If a concurrent merge has read a newer version, Delta skips
        this one.
        """
        return replace(self, scope=MergeScope.ALL, since=None, changes=TypedChanges())

    def commit_metadata(self) -> str:
        """Return the JSON that the commit of the merge stores, for the next merge and lineage."""
        others = {"changes", "upsert_version", "last_read", "withdrawn"}
        own = record_of(self, without=others, is_renewal=self.is_renewal)
        return json.dumps({"merge": {**own, **self._changes_as_record()}})

    def as_record(self) -> dict[str, Any]:
        """Return the merge as plain values, for `--json`."""
        return {
            "scope": str(self.scope),
            "since": self.since,
            "typed_version": self.version,
            **self._changes_as_record(),
        }

    def _changes_as_record(self) -> dict[str, Any]:
        return {
            "plans": self.changes.decoded.plans.numbers(),
            "removed": size_of_all(self.changes.removed.spans),
        }


def merge_scope(
    new: Mapping[str, Mapping[int, SpanSet]],
    present: Mapping[str, Mapping[int, SpanSet]],
    incarnations: Sequence[str],
) -> MergeScope:
    """Return which records a merge must read so that no row goes back to an older record.

    Args:
        new: Offsets that were decoded since the last merge, by topic id and partition.
        present: Offsets that may have rows in the typed table, with the new ones.
        incarnations: Topic ids, oldest first.
    """
    for topic_id, spans in new.items():
        before = difference_by_partition(present.get(topic_id, {}), spans)
        known = incarnations.index(topic_id) + 1 if topic_id in incarnations else 0
        newer = [each for each in incarnations[known:] if present.get(each)]
        # fence: older-records-merge-by-all-keys
        is_older = any(
            partition in before and each.spans[0].start < before[partition].spans[-1].end
            for partition, each in spans.items()
        )
        if newer or is_older:
            return MergeScope.KEYS
    return MergeScope.NEW

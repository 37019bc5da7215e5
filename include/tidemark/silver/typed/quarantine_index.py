"""The quarantine as an index: the bronze records that the typed table lacks, and why.

It follows the typed table. Each commit of the index names the commit of the typed table that it has
followed. An entry has no payload, because the bronze table has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tidemark.core.bookmark import Bookmark
from tidemark.core.following import (
    BatchOffsets,
    difference,
    intersection,
    listed_part,
    union,
)
from tidemark.core.offsets import SpanSet
from tidemark.delta.noted_commits import CommitRef, NotedTable, NotedVersion, RowChange
from tidemark.silver.typed.columns import INDEX_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

_NOTE = "followed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """A bronze record that the typed table lacks.

    Attributes:
        topic_id: Incarnation of the topic.
        partition: Partition number.
        offset: Offset.
        plan_sequence: Number of its bronze plan.
        reason: Why the typed table lacks it.
        part: The part that could not be decoded; None for a broken rule.
        detail: The first wrong field, or the broken rule; None if unknown.
        schema_id: Schema id of `part`, or of the value for a broken rule; None without one.
    """

    topic_id: str
    partition: int
    offset: int
    plan_sequence: int
    reason: str
    part: str | None = None
    detail: str | None = None
    schema_id: int | None = None


class QuarantineIndex:
    """The quarantine of a typed table.

    Args:
        uri: Location of its table.
    """

    def __init__(self, uri: str) -> None:
        self._table = NotedTable(uri, _NOTE)

    def open(self) -> OpenedIndex | None:
        """Return the newest version; None without a table.

        A decoder opens the quarantine before the typed table.
        """
        version = self._table.open()
        return None if version is None else OpenedIndex(version)


@dataclass(frozen=True, slots=True)
class OpenedIndex:
    """One version of a quarantine.

    Attributes:
        version: The version of its table.
    """

    version: NotedVersion

    def changes(self, typed: NotedVersion) -> Sequence[Bookmark] | None:
        """Return the bookmarks of the typed table that the quarantine has to follow.

        Returns:
            None if it has to compare all claimed offsets. Empty if it is up to date.
        """
        if typed.newest_note(over_deletions=True) is None:
            return []
        ref = _commit_ref(self.version.newest_note())
        notes = None if ref is None else typed.notes_since(ref)
        if notes is None:
            return None
        bookmarks = [Bookmark.from_metadata(note) for note in notes]
        known = [each for each in bookmarks if each is not None]
        if len(known) < len(bookmarks):
            return None
        return [each for each in known if each.changes_quarantine]

    def plans(self, changes: Sequence[Bookmark] | None) -> SpanSet | None:
        """Return the plans whose claimed offsets `follow` needs; None for all plans."""
        lists = [] if changes is None else [each.decoded for each in changes]
        listed = [each for each in lists if each is not None and not each.spans]
        if changes is None or len(listed) < len(lists):
            return None
        found = SpanSet.of_numbers({batch.sequence for batch in self.version.offsets()})
        for each in listed:
            found = found.union(each.plans)
        return found

    def follow(
        self,
        typed: NotedVersion,
        changes: Sequence[Bookmark] | None,
        claims: BatchOffsets,
        bronze: NotedVersion,
        entries_at: Callable[[BatchOffsets], Iterable[QuarantineEntry]],
    ) -> None:
        """Commit the changes of entries that follow from the typed table.

        An entry is a claimed offset that the bronze table has, and the typed table lacks. Entries
        at decoded offsets are written again, because a record that failed again may have another
        reason.

        Args:
            typed: The version of the typed table to follow.
            changes: Result of `changes`.
            claims: The offsets of `plans` that the newest bookmark of the typed table claims.
            bronze: The version of the bronze table that was decoded.
            entries_at: Returns the entries at some offsets, each with its reason.

        Raises:
            TableConflict: Another commit came first; nothing was changed.
        """
        entries = self.version.offsets()
        decoded = claims
        if changes is not None:
            decoded = union(listed_part(claims, each.decoded) for each in changes)
        here = bronze.offsets(decoded)
        present = typed.offsets(union([entries, here]))
        lacking = difference(here, present)
        if changes is None:
            lacking = difference(lacking, entries)
        outdated = union([intersection(entries, present), difference(entries, claims)])
        rows = _batches(entries_at(lacking)) if lacking else None
        self.version.commit(list(typed.ref), RowChange(removed=outdated, added=lacking, rows=rows))


def _commit_ref(note: Any) -> CommitRef | None:
    """Return the commit that a note names; None for the note of another program."""
    match note:
        case [int() as version, (str() | None) as digest]:
            return CommitRef(version, digest)
        case _:
            return None


def _batches(entries: Iterable[QuarantineEntry]) -> Sequence[pa.RecordBatch]:
    import pyarrow as pa

    table = pa.Table.from_pylist(list(map(asdict, entries)), pa.schema(INDEX_SCHEMA.to_arrow()))
    found: Sequence[pa.RecordBatch] = table.to_batches()
    return found

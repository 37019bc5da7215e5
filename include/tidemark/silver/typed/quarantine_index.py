"""The quarantine as an index: the bronze records that the typed table lacks, and why.

It follows the typed table. Each commit of the index names the commit of the typed table that it has
followed. An entry has no payload, because the bronze table has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.core.bookmark import Bookmark
from tidemark.core.datafile import DataFile
from tidemark.core.following import BatchOffsets, listed_part
from tidemark.core.offsets import Span, SpanSet, difference, intersection, union
from tidemark.delta import row_queries
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.noted_commits import CommitRef, NotedTable, NotedVersion, RowChange
from tidemark.delta.replacement import table_batches
from tidemark.delta.storage import folder_of
from tidemark.delta.table_io import open_if_exists, query_rows
from tidemark.silver.typed.columns import INDEX_SCHEMA
from tidemark.silver.typed.quarantine_record import QuarantinedRecord

if TYPE_CHECKING:
    import pyarrow as pa

_NOTE = "followed"


@translates_delta_errors
class QuarantineIndex:
    """The quarantine of a typed table.

    Args:
        uri: Location of its table.
        wrap: As in `NotedTable`.
    """

    def __init__(
        self, uri: str, wrap: Callable[[NotedVersion], NotedVersion] = lambda version: version
    ) -> None:
        self._uri = uri
        self._wrap = wrap

    def prepare(self, pipeline: str) -> None:
        """Create the table if it does not exist, and check it. See `DeltaDataTable.prepare`.

        Args:
            pipeline: The owner of the table.
        """
        self._table.prepare(pipeline)

    def check(self, pipeline: str) -> None:
        """Check the table if it exists, as `prepare` does."""
        self._table.state(pipeline, ())

    @property
    def _table(self) -> DeltaDataTable:
        return DeltaDataTable(self._uri, INDEX_SCHEMA, grows=True)

    def entries_in(self, files: Sequence[DataFile]) -> Sequence[QuarantinedRecord]:
        """Return the entries in files that a decoder has written to the folder of the table."""
        import pyarrow as pa

        batches = table_batches(folder_of(self._uri), files, pa.schema(INDEX_SCHEMA.to_arrow()))
        return [QuarantinedRecord.of_row(row) for batch in batches for row in batch.to_pylist()]

    def open(self) -> OpenedIndex | None:
        """Return the newest version; None without a table.

        A decoder opens the quarantine before the typed table.
        """
        version = NotedTable(self._uri, _NOTE, wrap=self._wrap).open()
        return None if version is None else OpenedIndex(version)

    def count(self) -> int:
        """Return the number of entries."""
        found = _query(self._uri, "SELECT count(*) AS entries FROM t")
        return sum(row["entries"] for row in found)

    def records(self, most: int | None = None) -> list[QuarantinedRecord]:
        """Return the entries by topic id, partition and offset.

        Args:
            most: Maximum number of entries; None for all.
        """
        return self._records(most=most)

    def records_at(self, topic_id: str, partition: int, span: Span) -> list[QuarantinedRecord]:
        """Return the entries of a partition at some offsets."""
        return self._records(_place(topic_id, (partition, span)))

    def _records(self, where: str = "true", most: int | None = None) -> list[QuarantinedRecord]:
        found = _query(
            self._uri,
            f"""
            SELECT topic_id, partition, "offset", plan_sequence, reason, part, detail, schema_id
            FROM t WHERE {where}
            ORDER BY topic_id, partition, "offset", plan_sequence
            {"" if most is None else f"LIMIT {most}"}
            """,
            where,
        )
        return [*map(QuarantinedRecord.of_row, found)]

    def reasons(self, most: int) -> Mapping[tuple[str, str | None, str | None], int]:
        """Return the number of entries by reason, part, and field or rule.

        Args:
            most: Maximum number of groups, the largest first.
        """
        found = _query(
            self._uri,
            f"""
            SELECT reason, part, detail, count(*) AS records FROM t
            GROUP BY reason, part, detail ORDER BY records DESC, reason, part, detail LIMIT {most}
            """,
        )
        return {(each["reason"], each["part"], each["detail"]): each["records"] for each in found}

    def spans(
        self, topic_id: str, most: int, within: tuple[int, Span] | None = None
    ) -> Mapping[int, SpanSet] | None:
        """Return the offsets of the entries of one incarnation, by partition.

        Args:
            topic_id: Incarnation of the topic.
            most: Maximum number of spans.
            within: Only a partition, and offsets there.

        Returns:
            None if there are more spans.
        """
        table = open_if_exists(self._uri)
        if table is None or not table.file_uris():
            return {}
        return row_queries.few_spans_where(table, _place(topic_id, within), most)


def _place(topic_id: str, within: tuple[int, Span] | None) -> str:
    """Return the SQL condition of the records of an incarnation, or of some offsets there."""
    if within is None:
        return f"topic_id = '{topic_id}'"
    partition, span = within
    return row_queries.offsets_condition(topic_id, {partition: SpanSet((span,))})


def _query(uri: str, sql: str, where: str = "true") -> list[dict[str, Any]]:
    """Return the rows of an SQL query as `query_rows`; none without a table or its files."""
    table = open_if_exists(uri)
    return [] if table is None or not table.file_uris() else query_rows(table, sql, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """A change of entries.

    Attributes:
        outdated: Offsets of entries to remove.
        lacking: Offsets that include those of all new entries.
    """

    outdated: BatchOffsets = field(default_factory=dict)
    lacking: BatchOffsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenedIndex:
    """One version of a quarantine.

    Attributes:
        version: The version of its table.
    """

    version: NotedVersion

    def changes(
        self, typed: NotedVersion, *, over_changes: bool = False
    ) -> Sequence[Bookmark] | None:
        """Return the bookmarks of the typed table that the quarantine has to follow.

        Args:
            typed: The typed table.
            over_changes: Whether other programs may have changed both tables, to find what they
                have changed. See `NotedVersion.newest_note`.

        Returns:
            None if it has to compare all claimed offsets. Empty if it is up to date.
        """
        if typed.newest_note(over_deletions=True, over_changes=over_changes) is None:
            return []
        ref = _commit_ref(self.version.newest_note(over_changes=over_changes))
        notes = None if ref is None else typed.notes_since(ref)
        if notes is None:
            return None
        bookmarks = [Bookmark.from_metadata(note) for note in notes]
        known = [each for each in bookmarks if each is not None]
        if len(known) < len(bookmarks):
            return None
        return [each for each in known if each.changes_quarantine]

    def plans(self, changes: Sequence[Bookmark] | None) -> SpanSet | None:
        """Return the plans whose claimed offsets the quarantine needs; None for all plans."""
        lists = [] if changes is None else [each.decoded for each in changes]
        listed = [each for each in lists if each is not None and not each.spans]
        if changes is None or len(listed) < len(lists):
            return None
        found = SpanSet.of_numbers({batch.sequence for batch in self.version.offsets()})
        for each in listed:
            found = found.union(each.plans)
        return found

    def differences(
        self,
        typed: NotedVersion,
        changes: Sequence[Bookmark] | None,
        claims: BatchOffsets,
        bronze: NotedVersion,
    ) -> EntryChange:
        """Return the changes of entries that follow from the typed table.

        An entry is a claimed offset that the bronze table has, and the typed table lacks. Entries
        at decoded offsets are written again, because a record that failed again may have another
        reason.

        Args:
            typed: The version of the typed table to follow.
            changes: Result of `changes`.
            claims: The offsets of `plans` that the newest bookmark of the typed table claims.
            bronze: The version of the bronze table that was decoded.
        """
        entries = self.version.offsets()
        decoded = claims
        if changes is not None:
            decoded = union(listed_part(claims, each.decoded) for each in changes)
        here = bronze.offsets(decoded)
        # Only a decode turns an entry into a typed row.
        changed = entries if changes is None else intersection(entries, decoded)
        present = typed.offsets(union([changed, here]))
        lacking = difference(here, present)
        if changes is None:
            lacking = difference(lacking, entries)
        outdated = union([intersection(entries, present), difference(entries, claims)])
        return EntryChange(outdated=outdated, lacking=lacking)

    def own_change(self, decoded: BatchOffsets, claims: BatchOffsets) -> EntryChange:
        """Return the changes of entries after the only commit that the quarantine has to follow.

        Args:
            decoded: The offsets that the commit decoded, of which some may have failed.
            claims: As for `differences`.
        """
        entries = self.version.offsets()
        outdated = union([intersection(entries, decoded), difference(entries, claims)])
        return EntryChange(outdated=outdated, lacking=decoded)

    def follow(
        self,
        typed: NotedVersion,
        change: EntryChange,
        entries: Sequence[QuarantinedRecord] = (),
        files: Sequence[DataFile] = (),
    ) -> None:
        """Commit a change of entries.

        Args:
            typed: The version of the typed table that was followed.
            change: Result of `differences` or `own_change`.
            entries: New entries.
            files: Files with new entries, in the folder of the quarantine.

        Raises:
            TableConflict: Another commit came first; nothing was changed.
        """
        rows = _batches(entries) if entries else None
        row_change = RowChange(
            removed=change.outdated, added=change.lacking, files=files, rows=rows
        )
        self.version.commit(list(typed.ref), row_change)


def _commit_ref(note: Any) -> CommitRef | None:
    """Return the commit that a note names; None for the note of another program."""
    match note:
        case [int() as version, (str() | None) as digest]:
            return CommitRef(version, digest)
        case _:
            return None


def _batches(entries: Iterable[QuarantinedRecord]) -> Sequence[pa.RecordBatch]:
    import pyarrow as pa

    table = pa.Table.from_pylist(
        [each.as_row() for each in entries], pa.schema(INDEX_SCHEMA.to_arrow())
    )
    found: Sequence[pa.RecordBatch] = table.to_batches()
    return found

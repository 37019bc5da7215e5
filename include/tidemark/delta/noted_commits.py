"""Commits to a table that follows another table. The note of a commit stores what it has followed.

A commit is made from one version of the table. Only commits that change no row may come between
that version and the commit. So a process that has read an older version commits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from tidemark.core.datafile import DataFile
from tidemark.core.errors import TidemarkError
from tidemark.core.following import Batch, BatchOffsets, BatchTotals, Totals
from tidemark.core.offsets import Span, intersection, spans_by_partition, union, union_by_partition
from tidemark.delta import commit_log, row_queries
from tidemark.delta.checked_commits import Change, refused_commit
from tidemark.delta.copied_tables import for_writing
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.errors import DeltaLogDamaged, TableConflict
from tidemark.delta.landed_files import added_file, lost_file
from tidemark.delta.live_files import files_at
from tidemark.delta.replacement import spooled_reader, table_batches
from tidemark.delta.row_queries import any_of, offsets_condition
from tidemark.delta.row_removal import remove_rows
from tidemark.delta.storage import folder_of
from tidemark.delta.table_checks import check_owner, check_removals, check_replaceable
from tidemark.delta.table_io import newest_table, open_if_exists, query_rows, utc_datetime
from tidemark.delta.table_properties import WRITER_PROPERTIES
from tidemark.delta.unreadable_files import (
    UnreadableFooter,
    raise_if_unreadable,
    unreadable_footer,
)
from tidemark.delta.widened_maps import has_widened_maps

if TYPE_CHECKING:
    import pyarrow as pa

_RECENT_COMMITS = 50
_MAX_CONDITIONS = 1_000
"""Maximum number of plans whose offsets are conditions of a query, which a query plans slowly."""


class CommitRef(NamedTuple):
    """A commit of a table. A copy of the table may have another commit with the same version."""

    version: int
    digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """The rows that a commit removes and adds.

    Attributes:
        removed: Offsets of rows to remove, by bronze plan.
        added: Offsets that contain those of all new rows. The table must have no row there that is
            not removed: a commit that removes rows, or adds `rows`, may replace it.
        files: Files with new rows, in the folder of the table.
        rows: Other new rows, with the columns of the table.
    """

    removed: BatchOffsets = field(default_factory=dict)
    added: BatchOffsets = field(default_factory=dict)
    files: Sequence[DataFile] = ()
    rows: Iterable[pa.RecordBatch] | None = None


@translates_delta_errors
class NotedTable:
    """A table whose commits have notes.

    Args:
        uri: The table.
        key: Name of the notes in the metadata of commits.
        owner: The pipeline that owns the table; None if the caller checks the owner.
        wrap: Wraps each opened version, for fail points.
    """

    def __init__(
        self,
        uri: str,
        key: str,
        owner: str | None = None,
        wrap: Callable[[NotedVersion], NotedVersion] = lambda version: version,
    ) -> None:
        self._uri = uri
        self._key = key
        self._owner = owner
        self._wrap = wrap

    def open(self) -> NotedVersion | None:
        """Return the newest version; None without a table.

        Raises:
            ForeignTable: The table has another owner.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return None
        if self._owner is not None:
            check_owner(table, self._uri, self._owner)  # fence: followed-table-is-the-own-one
        return self._wrap(NotedVersion(self._uri, self._key, table))


@translates_delta_errors
class NotedVersion:
    """One version of a table whose commits have notes.

    Args:
        uri: The table.
        key: Name of the notes in the metadata of commits.
        table: The table at that version.
    """

    def __init__(self, uri: str, key: str, table: DeltaTable) -> None:
        self._uri = uri
        self._key = key
        self._table = table
        self._commits = commit_log.CommitHistory(table)
        # Read now: a copy may replace the table later.
        self._digest = commit_log.commit_digest(table, table.version())

    @property
    def ref(self) -> CommitRef:
        """The commit of the version."""
        return CommitRef(self._table.version(), self._digest)

    @property
    def uri(self) -> str:
        """The table."""
        return self._uri

    @property
    def table_id(self) -> str:
        """The Delta id of the table."""
        return str(self._table.metadata().id)

    def newest_note(self, *, over_deletions: bool = False, over_changes: bool = False) -> object:
        """Return the note of the newest commit that has one.

        Args:
            over_deletions: Whether other programs may have deleted rows since that commit.
            over_changes: Whether other programs may have made any change since, except a RESTORE.

        Returns:
            None without such a commit, or if a later commit made any other change of rows.
        """
        found = self._newest_noted(over_deletions=over_deletions, over_changes=over_changes)
        return None if found is None else self._notes([found])[found["version"]]

    def noted_at(self, *, over_deletions: bool = False) -> datetime | None:
        """Return the time of the commit of `newest_note`, by the clock of its writer."""
        found = self._newest_noted(over_deletions=over_deletions)
        return None if found is None else utc_datetime(found["timestamp"] * 1000)

    def _newest_noted(
        self, *, over_deletions: bool, over_changes: bool = False
    ) -> dict[str, Any] | None:
        """Return the commit of `newest_note`."""
        for limit in (1, _RECENT_COMMITS, None):
            commits = self._commits.history(limit)
            notes = self._notes(commits)
            for commit in commits:
                if commit["version"] in notes:
                    return commit
                operation = commit.get("operation")
                is_deletion = over_deletions and operation == "DELETE"
                is_change = over_changes and operation != "RESTORE"
                # fence: note-before-another-change-of-rows-is-unknown
                if not (is_deletion or is_change or _changes_no_rows(commit)):
                    return None
        return None

    def notes_since(self, ref: CommitRef, *, over_changes: bool = True) -> Sequence[object] | None:
        """Return the notes of the commits after a commit, oldest first.

        Commits without a note are left out.

        Args:
            ref: The commit.
            over_changes: Whether commits without a note may have changed rows.

        Returns:
            None if the table lacks the commit, or if its log lacks a later commit.
        """
        missing = self._table.version() - ref.version
        # fence: followed-commit-is-known-by-its-digest
        if missing < 0 or ref.digest is None or _digest_in(self._table, ref) != ref.digest:
            return None
        commits = self._commits.history(missing) if missing else ()
        if len(commits) < missing:
            return None
        notes = self._notes(commits)
        others = (each for each in commits if each["version"] not in notes)
        # fence: followed-commits-change-no-other-rows
        if not over_changes and not all(map(_changes_no_rows, others)):
            return None
        return [note for _, note in sorted(notes.items())]

    def notes_after(self, version: int) -> Sequence[tuple[datetime | None, object]]:
        """Return the time and the note of each commit after a version, newest first.

        The times are by the clocks of the writers; None for an impossible time. The log may lack
        old commits.
        """
        missing = self._table.version() - version
        commits = self._commits.history(missing) if missing > 0 else ()
        notes = self._notes(commits)
        return [
            (utc_datetime(each["timestamp"] * 1000), notes[each["version"]])
            for each in commits
            if each["version"] in notes
        ]

    def topic_ids(self) -> Sequence[str]:
        """Return the topic ids of the rows, ordered by the newest plan of each."""
        if not self._table.file_uris():
            return []
        # Plans of a recreated topic have higher numbers than those of the earlier one.
        order = "max(plan_sequence), topic_id"
        found = query_rows(
            self._table, f"SELECT topic_id FROM t GROUP BY topic_id ORDER BY {order}"
        )
        return [row["topic_id"] for row in found]

    def offsets(self, within: BatchOffsets | None = None) -> BatchOffsets:
        """Return the offsets of the rows by plan, of all rows or of those at given offsets."""
        if within == {} or not self._table.file_uris():
            return {}
        condition = "true" if within is None else _condition_around(within)
        found = _batch_offsets(
            query_rows(self._table, _ISLANDS.format(condition=condition), condition)
        )
        return found if within is None else intersection(found, within)

    def totals(self) -> BatchTotals:
        """Return the totals of the rows by plan and partition."""
        found: dict[Batch, dict[int, Totals]] = {}
        for row in query_rows(self._table, _TOTALS) if self._table.file_uris() else ():
            batch, partition = (
                Batch(row.pop("plan_sequence"), row.pop("topic_id")),
                row.pop("partition"),
            )
            found.setdefault(batch, {})[partition] = Totals(**row)
        return found

    def rows_by_plan(self, plans: Span) -> Mapping[Batch, int]:
        """Return the number of rows of each plan with a number in a span."""
        condition = f"plan_sequence >= {plans.start} AND plan_sequence < {plans.end}"
        sql = _ROWS_BY_PLAN.format(condition=condition)
        found = query_rows(self._table, sql, condition) if self._table.file_uris() else ()
        return {Batch(row["plan_sequence"], row["topic_id"]): row["rows"] for row in found}

    def row_count(self) -> int | None:
        """Return the number of rows; None if the files lack statistics."""
        return row_queries.row_count(self._table)

    def unreadable_footer(self) -> UnreadableFooter | None:
        """See `unreadable_files.unreadable_footer`."""
        return unreadable_footer(self._uri, self._table)

    def check_removals(self) -> None:
        """See `table_checks.check_removals`."""
        check_removals(self._table, self._uri)

    def check_replaceable(self) -> None:
        """See `table_checks.check_replaceable`."""
        check_replaceable(self._table, self._uri)

    def clear(self, note: object, columns: Schema, reasons: Mapping[str, str]) -> None:
        """Commit a note, remove all rows, and replace the columns.

        Args:
            note: As for `commit`.
            columns: The new columns.
            reasons: Further metadata of the commit: who requested it, and why.

        Raises:
            TableConflict, TableAltered: As for `commit`.
        """
        import pyarrow as pa

        newest = newest_table(self._uri)
        self._check_follows(newest)
        check_replaceable(newest, self._uri)
        version = int(newest.version())
        try:
            write_deltalake(
                for_writing(newest),
                pa.schema(columns.to_arrow()).empty_table(),
                mode="overwrite",
                schema_mode="overwrite",
                commit_properties=_properties({self._key: note, **reasons}),
            )
        except CommitFailedError as refused:
            raise self._refusal(refused, version) from refused

    def commit(self, note: object, change: RowChange) -> int:
        """Commit a note and a change of rows right after this version.

        Args:
            note: The note, as plain values.
            change: The change, which was made from this version.

        Returns:
            The version of the commit.

        Raises:
            TableConflict: Another commit came first, or a file is lost; nothing was changed.
            TableAltered, SetupError, UnreadableFile: Rows cannot be removed.
        """
        metadata = {self._key: note}
        newest = newest_table(self._uri)
        self._check_follows(newest)
        # Maintenance and VACUUM remove old files that no commit refers to.
        if lost := lost_file(self._uri, change.files):  # fence: noted-commit-has-its-files
            raise TableConflict.of_lost_file(self._uri, lost)
        version = int(newest.version())
        try:
            if change.removed and has_widened_maps(newest):
                return self._replace_in_files(newest, json.dumps(metadata), change)
            properties = _properties(metadata)
            if change.removed or change.rows is not None:
                self._replace(newest, properties, change)
            else:
                actions = _actions(change)
                newest.create_write_transaction(
                    actions, "append", newest.schema(), commit_properties=properties
                )
            return version + 1
        except CommitFailedError as refused:
            raise self._refusal(refused, version) from refused
        except (DeltaError, OSError) as failed:
            # delta-rs also reads the rows that stay in the files.
            removed = union_by_partition(change.removed.values())
            raise_if_unreadable(newest, failed, files_at(newest, removed) if removed else ())
            raise

    def _refusal(self, refused: CommitFailedError, version: int) -> TidemarkError:
        """Return the error of a refused commit, which was made from a newer version than this."""
        return refused_commit(
            refused,
            self._uri,
            version,
            "changing rows",
            lambda _: TableConflict.of_version(self._uri, self._table.version()),
        )

    def _check_follows(self, newest: DeltaTable) -> None:
        """Raise `TableConflict` unless only commits that change no row follow this version.

        Raises:
            DeltaLogDamaged: The log has no commit of this version, which is the newest one.
        """
        missing = newest.version() - self._table.version()
        if not missing and self._digest is None:
            raise DeltaLogDamaged.without_newest_commit(self._uri, newest.version())
        commits = commit_log.history(newest, missing) if missing > 0 else []
        if (
            missing < 0
            or len(commits) < missing
            or self._digest is None
            # fence: noted-commit-follows-the-same-table
            or _digest_in(newest, self.ref) != self._digest
            # fence: noted-commit-follows-no-change-of-rows
            or not all(map(_changes_no_rows, commits))
        ):
            raise TableConflict.of_version(self._uri, self._table.version())

    def _replace(self, newest: DeltaTable, properties: CommitProperties, change: RowChange) -> None:
        import pyarrow as pa

        if change.removed:
            check_removals(newest, self._uri)
        # The file system of delta-rs cannot be used while delta-rs writes.
        store = folder_of(self._uri)
        schema = pa.schema(newest.schema().to_arrow())
        rows = chain(table_batches(store, change.files, schema), change.rows or ())
        # delta-rs requires the condition of the removed rows from all new rows.
        condition = _condition_of(union([change.removed, change.added]))
        with spooled_reader(rows, schema) as reader:
            write_deltalake(
                for_writing(newest),
                reader,
                mode="overwrite",
                predicate=condition,
                writer_properties=WRITER_PROPERTIES,
                commit_properties=properties,
            )

    def _replace_in_files(self, newest: DeltaTable, metadata: str, change: RowChange) -> int:
        def checked(version: DeltaTable) -> Change:
            self._check_follows(version)
            return Change(actions=_actions(change), metadata=metadata, count=0)

        conflict = TableConflict.of_version(self._uri, self._table.version())
        return remove_rows(newest, change.removed, checked, conflict)

    def _notes(self, commits: Sequence[dict[str, Any]]) -> Mapping[int, object]:
        """Return the notes of some commits by version."""
        found = commit_log.commits_with_metadata(commits)
        return {version: own[self._key] for version, own in found if self._key in own}


def _properties(metadata: Mapping[str, object]) -> CommitProperties:
    return CommitProperties(
        # fence: noted-commit-follows-its-version
        max_commit_retries=0,
        custom_metadata={"userMetadata": json.dumps(metadata)},
    )


def _digest_in(table: DeltaTable, ref: CommitRef) -> str | None:
    """Return the digest of the commit of a table with the version of `ref`."""
    return commit_log.commit_digest(table, ref.version)


def _changes_no_rows(commit: dict[str, Any]) -> bool:
    metadata = dict(commit_log.commits_with_metadata([commit]))
    return commit_log.changes_no_rows(commit, metadata.get(commit["version"], {}))


def _actions(change: RowChange) -> list[Any]:
    """Return the actions that add the files of a change."""
    numbers = [batch.sequence for batch in change.added] or [0]
    plans = Span(min(numbers), max(numbers) + 1)
    return [added_file(plans, file) for file in change.files]


def _condition_of(offsets: BatchOffsets) -> str:
    """Return the SQL condition of the rows of some plans at some offsets."""
    return any_of(
        [
            f"(plan_sequence = {batch.sequence} AND {offsets_condition(batch.topic_id, spans)})"
            for batch, spans in sorted(offsets.items())
        ]
    )


def _condition_around(offsets: BatchOffsets) -> str:
    """Return an SQL condition of at least the rows of some plans at some offsets."""
    if len(offsets) <= _MAX_CONDITIONS:
        return _condition_of(offsets)
    plans = [batch.sequence for batch in offsets]
    return f"plan_sequence >= {min(plans)} AND plan_sequence <= {max(plans)}"


_ISLANDS = """
    SELECT plan_sequence, topic_id, partition, min(place) AS first, max(place) AS last FROM (
        SELECT plan_sequence, topic_id, partition, place,
               place - row_number() OVER (
                   PARTITION BY plan_sequence, topic_id, partition ORDER BY place) AS island
        FROM (SELECT DISTINCT plan_sequence, topic_id, partition, "offset" AS place
              FROM t WHERE {condition}))
    GROUP BY plan_sequence, topic_id, partition, island
"""


_ROWS_BY_PLAN = """
    SELECT plan_sequence, topic_id, count(*) AS rows FROM t WHERE {condition}
    GROUP BY plan_sequence, topic_id
"""

_TOTALS = """
    SELECT plan_sequence, topic_id, partition, count(*) AS rows,
           min("offset") AS first, max("offset") AS last, sum("offset" % 4294967291) AS sum,
           sum(("offset" % 65521) * ("offset" % 65521)) AS squares
    FROM t GROUP BY plan_sequence, topic_id, partition
"""
"""The remainders keep the sums of a billion rows below 2**63."""


def _batch_offsets(islands: Iterable[Mapping[str, Any]]) -> BatchOffsets:
    found: dict[Batch, list[tuple[int, Span]]] = {}
    for row in islands:
        batch = Batch(row["plan_sequence"], row["topic_id"])
        span = Span(row["first"], row["last"] + 1)
        found.setdefault(batch, []).append((row["partition"], span))
    return {batch: spans_by_partition(placed) for batch, placed in found.items()}

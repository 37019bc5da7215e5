"""Merges of a typed table into its upsert table.

An upsert table has no offsets to account for. All of its rows come from the typed table, and its
commits store the version of the typed table that they read. So it follows every change of the typed
table, such as replays and undone plans, and a merge can rebuild it at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from tidemark.bronze.ingest.protocols import ControlReader
from tidemark.core.bookmark import Bookmark, OffsetList, TypedChanges
from tidemark.core.errors import TidemarkError
from tidemark.core.following import (
    PlansSince,
    allowed,
    by_topic_id,
    listed_part,
    read_since,
    required,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import SpanSet, difference, size_of_all, union
from tidemark.core.publication import PublishRule
from tidemark.delta.noted_commits import CommitRef, NotedTable, NotedVersion
from tidemark.silver.typed.followed_tables import bookmark_of
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType
from tidemark.spec.model import PipelineSpec
from tidemark.spec.upsert import (
    LastMerge,
    MergePlan,
    MergeScope,
    UpsertSpec,
    merge_scope,
    row_definition,
)

if TYPE_CHECKING:
    from tidemark.silver.upsert.table import DeltaUpsertTable


class Merger(Protocol):
    """Executes merges into an upsert table."""

    def merge(self, merge: MergePlan) -> None:
        """Execute a merge in one commit. A merge that has been executed changes nothing.

        Raises:
            EngineFailed: The merge may have been committed. Repeating the call is safe.
        """
        ...

    def compact(self) -> None:
        """Rewrite small files, and files with many removed rows.

        Raises:
            TidemarkError: Spark failed. The rows of the table are unchanged.
        """
        ...


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """Plans and executes the merges into one pipeline's upsert table.

    Attributes:
        spec: The pipeline of the typed table.
        upsert: The spec of the upsert table.
        control: The control table.
        typed: The typed table with the bookmarks of its commits.
        columns: Returns the types of keys and values in the typed table.
        table: The upsert table.
    """

    spec: PipelineSpec
    upsert: UpsertSpec
    control: ControlReader
    typed: NotedTable
    columns: Callable[[], Mapping[Part, FieldType]]
    table: DeltaUpsertTable

    def next(self) -> MergePlan | None:
        """Return the next merge; None if the table is up to date. Writes nothing, needs no JVM.

        Raises:
            ForeignTable, TableAltered: The typed table or the upsert table belongs to another
                pipeline or program.
        """
        merge = self._next()
        return None if merge is None or merge.is_renewal else merge

    def _next(self) -> MergePlan | None:
        """Return the next merge, which may be a renewal."""
        # Read before the last merge. A rebuild that starts from an older state must not have the
        # transaction of one that starts from a newer state.
        upsert_version = self.table.version()
        last = self.table.last_merge(self.spec.origin)
        # Opened after the last merge was read, so that no rebuild goes back behind that merge.
        typed, columns = self.typed.open(), self.columns()
        has_columns = len(columns) == len(Part)
        if typed is None:
            return None
        if not has_columns and (upsert_version < 0 or typed.row_count() != 0):
            # No record with both a key and a value has been decoded.
            return None
        definition = row_definition(self.upsert)
        changes = changes_since(typed, last) if last else None
        fits = not has_columns or self.table.fits(columns)
        if last is None or last.definition != definition or not fits:
            changes = None
        elif changes == TypedChanges():
            return _renewal(last, typed, upsert_version)
        known = self._known_plans(typed, changes)
        incarnations = self._incarnations(typed, known)
        if last is None or last.incarnations != incarnations or changes is None:
            last, changes = None, None
        if upsert_version < 0 and not incarnations:
            # Nothing has been decoded for the new table.
            return None
        scope, withdrawn = self._scope(changes, known, incarnations)
        new_app_id = f"tidemark:{self.spec.origin}:upsert:{typed.table_id}:{upsert_version}"
        return MergePlan(
            scope=scope,
            since=last.typed_version if last else None,
            version=typed.ref.version,
            changes=changes or TypedChanges(),
            withdrawn=withdrawn,
            incarnations=incarnations,
            # If a copy replaces the typed table meanwhile, the next merge finds another commit and
            # rebuilds the upsert table.
            typed_commit=typed.ref.digest,
            definition=definition,
            app_id=last.app_id if last else new_app_id,
            upsert_version=upsert_version,
            last_read=last.typed_version if last else self.table.last_read(typed.table_id),
        )

    def due_since(self, merge: MergePlan) -> datetime | None:
        """Return the time of the oldest change of the typed table that no merge has read.

        None for a rebuild without a change since the last merge, or if the last merge is unknown.
        Nothing records when a spec was changed or a table restored.
        """
        last = merge.last_read if merge.upsert_version >= 0 else -1
        typed = self.typed.open() if last is not None else None
        if typed is None or last is None:
            return None
        changes = [
            at
            for at, note in typed.notes_after(last)
            # An unknown change counts as well.
            if at and TypedChanges.of([Bookmark.from_metadata(note)]) != TypedChanges()
        ]
        return min(changes, default=None)

    def execute(self, merger: Merger) -> MergePlan | None:
        """Execute the next merge and return it; None if the table was up to date.

        Raises:
            TableConflict: Another commit to the upsert table came first.
            EngineFailed: The merge may have been committed. Repeating the call is safe.
        """
        merge = self._next()
        if merge is None:
            return None
        if merge.is_renewal:
            self.table.renew(merge)
            return None
        columns = self.columns()
        if len(columns) < len(Part):
            # The typed table was emptied and has no columns that Spark could read.
            self.table.clear(merge)
        else:
            self.table.prepare(self.spec.origin, columns)
            merger.merge(merge)
            if self.upsert.deletion_vectors:
                self._compact(merger)
        log.info(
            "merged pipeline=%s typed_version=%d scope=%s",
            self.spec.name,
            merge.version,
            merge.scope,
        )
        return merge

    def _compact(self, merger: Merger) -> None:
        """Compact the table if its merges justify it. A failure is a warning."""
        try:
            if self.table.needs_compaction():
                merger.compact()
        except TidemarkError as failed:
            # Another commit may have removed the files first.
            log.warning("table not compacted pipeline=%s message=%s", self.spec.name, failed)

    def _known_plans(self, typed: NotedVersion, changes: TypedChanges | None) -> _KnownPlans | None:
        """Return the plans at the bookmark of the typed table; None if the bookmark is unknown."""
        bookmark = bookmark_of(typed)
        if bookmark is None:
            return None
        # Read before the plans, so that no plan is missing in both.
        ledger = self.control.summary(self.spec.origin)
        decoded = changes.decoded.plans if changes else SpanSet()
        found = read_since(self.control, self.spec.origin, bookmark, bookmark.publish, decoded)
        return None if found is None else _KnownPlans(ledger, found, bookmark.publish)

    @staticmethod
    def _incarnations(typed: NotedVersion, known: _KnownPlans | None) -> tuple[str, ...]:
        """Return the topic ids of typed rows, oldest first."""
        topic_ids = known.topic_ids() if known else set()
        # An older ledger may lack the newest topic ids.
        # fence: topic-ids-of-unknown-plans-are-read
        if len(topic_ids) == 1 and typed.row_count() != 0:
            return tuple(topic_ids)
        return tuple(typed.topic_ids())

    @staticmethod
    def _scope(
        changes: TypedChanges | None, known: _KnownPlans | None, incarnations: Sequence[str]
    ) -> tuple[MergeScope, int]:
        """Return which records a merge must read so that no row goes back to an older record.

        Returns:
            The records, and the number of offsets whose rows were removed and not decoded again.
        """
        if changes is None:
            return MergeScope.ALL, 0
        if known is None:
            return MergeScope.KEYS, size_of_all(changes.removed.spans)
        new = known.listed(changes.decoded)
        if changes.removed:
            return MergeScope.KEYS, size_of_all(difference(changes.removed.spans, new))
        return merge_scope(new, known.present(incarnations), incarnations), 0


def _renewal(last: LastMerge, typed: NotedVersion, upsert_version: int) -> MergePlan | None:
    """Return the merge that renews the last one; None if that read the newest version."""
    if typed.ref.version == last.typed_version:
        return None
    return MergePlan(
        scope=MergeScope.NEW,
        since=last.typed_version,
        version=typed.ref.version,
        changes=TypedChanges(),
        withdrawn=0,
        incarnations=last.incarnations,
        typed_commit=typed.ref.digest,
        definition=last.definition,
        app_id=last.app_id,
        upsert_version=upsert_version,
    )


_ByTopicId: TypeAlias = Mapping[str, Mapping[int, SpanSet]]
"""Offsets by topic id and partition."""


class _KnownPlans(NamedTuple):
    """The plans at the bookmark of a typed table.

    Attributes:
        ledger: A later summary of the ledger.
        found: The plans that have changed since the bookmark, and those of a list.
        publish: The rule of the bookmark.
    """

    ledger: Ledger
    found: PlansSince
    publish: PublishRule

    def topic_ids(self) -> set[str]:
        """Return all topic ids of plans, at least those of typed rows."""
        plans = (*self.ledger.plans.values(), *self.found.before.values())
        settled = {topic_id for topic_id, _ in self.ledger.settled.landed}
        return settled | {record.plan.topic_id for record in plans}

    def listed(self, offsets: OffsetList) -> _ByTopicId:
        """Return the offsets of a list. The numbers of its plans were read."""
        plans = listed_part(required(self.found.before.values(), self.publish), offsets)
        return union([by_topic_id(plans), offsets.spans])

    def present(self, topic_ids: Iterable[str]) -> _ByTopicId:
        """Return the offsets that may have rows in the typed table."""
        changed = by_topic_id(required(self.found.now.values(), PublishRule.ALWAYS))
        before = by_topic_id(allowed(self.found.before.values(), self.publish))
        landed = {topic_id: self.ledger.landed_of(topic_id) for topic_id in topic_ids}
        return union([difference(landed, changed), before])


def changes_since(typed: NotedVersion, merge: LastMerge) -> TypedChanges | None:
    """Return the changes of a typed table since a merge read it; None if they are unknown."""
    read = CommitRef(merge.typed_version, merge.typed_commit)
    notes = typed.notes_since(read, over_changes=False)
    if notes is None:
        return None
    return TypedChanges.of(Bookmark.from_metadata(note) for note in notes)

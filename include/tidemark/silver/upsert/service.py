"""Merges of a typed table into its upsert table.

An upsert table has no offsets to account for. All of its rows come from the typed table, and its
commits store the version of the typed table that they read. So it follows every change of the typed
table, such as replays and undone plans, and a merge can rebuild it at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.protocols import ControlReader, DataLog
from tidemark.core.events import EventKind
from tidemark.core.table_state import TableChanges
from tidemark.silver.typed.decoder import topic_ids_of
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType
from tidemark.spec.model import PipelineSpec
from tidemark.spec.upsert import (
    MergePlan,
    UpsertSpec,
    merge_scope,
    row_definition,
)

if TYPE_CHECKING:
    from tidemark.silver.upsert.table import DeltaUpsertTable


class TypedLog(DataLog, Protocol):
    """A typed table with the history that merges need."""

    def columns(self) -> Mapping[Part, FieldType]:
        """See `TypedTable.columns`."""
        ...

    def version_and_id(self) -> tuple[int, str]:
        """Return the newest version and the Delta id of the table; (-1, "") if it is missing."""
        ...

    def commit_digest(self, version: int) -> str | None:
        """Return what distinguishes the commit of a version from others; None if it is unknown."""
        ...

    def changes_since(self, version: int, digest: str | None) -> TableChanges | None:
        """Return the changes of rows after a version; None if the log does not show them.

        Args:
            version: The version.
            digest: Its `commit_digest` when it was read.
        """
        ...


class Merger(Protocol):
    """Executes merges into an upsert table."""

    def merge(self, merge: MergePlan) -> None:
        """Execute a merge in one commit. A merge that has been executed changes nothing.

        Raises:
            EngineFailed: The merge may have been committed. Repeating the call is safe.
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
        typed: The typed table.
        table: The upsert table.
    """

    spec: PipelineSpec
    upsert: UpsertSpec
    control: ControlReader
    typed: TypedLog
    table: DeltaUpsertTable

    def next(self) -> MergePlan | None:
        """Return the next merge; None if the table is up to date. Writes nothing, needs no JVM.

        Raises:
            ForeignTable, TableAltered: The upsert table belongs to another pipeline or program.
            HistoriesDiverge: The typed table and the control table have different histories.
        """
        version, table_id = self.typed.version_and_id()
        columns = self.typed.columns()
        if version < 0 or len(columns) < len(Part):
            # No record with both a key and a value has been decoded, or the table was removed.
            read_checked_ledger(self.control, self.spec.name, self.typed)
            return None
        # Read before the changes. If a copy replaces the typed table meanwhile, the next merge
        # finds another commit and rebuilds the upsert table.
        typed_commit = self.typed.commit_digest(version)
        # Read before the last merge. A rebuild that starts from an older state must not have the
        # transaction of one that starts from a newer state.
        upsert_version = self.table.version()
        last = self.table.last_merge(self.spec.origin)
        # Read after the last merge, so that it has all offsets whose rows have been merged.
        ledger = read_checked_ledger(self.control, self.spec.name, self.typed)
        changes = self.typed.changes_since(last.typed_version, last.typed_commit) if last else None
        appended = changes.appended if changes else ()
        topics = {*topic_ids_of(ledger), *(plan.topic_id for plan in appended)}
        incarnations = self._incarnations(topics, ledger.topic_id)
        definition = row_definition(self.upsert, incarnations)
        if last is None or last.definition != definition or not self.table.fits(columns):
            changes = None
        if changes is None:
            last = None
        elif not changes:
            return None
        landed = {topic_id: ledger.landed_of(topic_id) for topic_id in topics}
        if upsert_version < 0 and not any(landed.values()):
            # Nothing has been decoded for the new table.
            return None
        new_app_id = f"tidemark:{self.spec.origin}:upsert:{table_id}:{upsert_version}"
        return MergePlan(
            scope=merge_scope(changes, landed, incarnations),
            since=last.typed_version if last else None,
            version=version,
            changes=changes or TableChanges(),
            incarnations=incarnations,
            typed_commit=typed_commit,
            definition=definition,
            app_id=last.app_id if last else new_app_id,
            is_first=upsert_version < 0,
            last_read=last.typed_version if last else self.table.last_read(table_id),
        )

    def due_since(self, merge: MergePlan) -> datetime | None:
        """Return the time of the oldest change of the typed table that no merge has read.

        None for a rebuild without a change since the last merge, or if the last merge is unknown.
        The control table does not record when a spec was changed or a table restored.
        """
        typed = self.spec.name
        landed = self.control.recorded_at(typed, EventKind.LANDED)
        undone = self.control.recorded_at(typed, EventKind.UNDONE)
        changes = merge.changes
        plans = {plan.sequence for plan in (*changes.appended, *changes.replaced)}
        removed = {*changes.removed}
        if merge.since is None and merge.last_read is not None:
            # A rebuild lists no changes, so read the full ledger, which takes longer.
            for number, record in self.control.ledger(typed).plans.items():
                landing, undone_version = record.held_now, record.undone_version
                if landing and landing.table_version > merge.last_read:
                    plans.add(number)
                # Before the first merge, a removal may be of an earlier typed table.
                if undone_version is not None and undone_version > merge.last_read >= 0:
                    removed.add(number)
        times = [at for number, at in landed.items() if number in plans or merge.is_first]
        times += [at for number, at in undone.items() if number in removed]
        return min(times, default=None)

    def execute(self, merger: Merger) -> MergePlan | None:
        """Execute the next merge and return it; None if the table was up to date.

        Raises:
            EngineFailed: The merge may have been committed. Repeating the call is safe.
        """
        merge = self.next()
        if merge is None:
            return None
        self.table.prepare(self.spec.origin, self.typed.columns())
        merger.merge(merge)
        log.info(
            "merged pipeline=%s typed_version=%d scope=%s",
            self.spec.name,
            merge.version,
            merge.scope,
        )
        return merge

    def _incarnations(self, topics: Collection[str], newest: str | None) -> tuple[str, ...]:
        """Return topic ids, oldest first, ordered by the first plan of each."""
        first: dict[str, int] = {}
        if len(topics) > 1:
            for record in self.control.ledger(self.spec.origin).plans.values():
                first.setdefault(record.plan.topic_id, record.plan.sequence)
        return tuple(sorted(topics, key=lambda each: (each == newest, first.get(each, 0), each)))

"""Keeping a table of latest rows as its typed table says.

It has no offsets of its own to account for: all that it is made from is in the typed table, and how
far it is, as a version of that table, is in its own commits. So whatever happens to the typed
table - landings in any order, replays, undo - it follows, and can be made anew at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemark.ingest.protocols import ControlReader, DataLog
from tidemark.ingest.recorder import checked_ledger
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType
from tidemark.spec.model import PipelineSpec
from tidemark.spec.upsert import Changes, Merge, Shown, UpsertSpec, how_to_merge, rule_of
from tidemark.typed.decoder import topics_of


class TypedLog(DataLog, Protocol):
    """A typed table, for the table of latest rows that follows it."""

    def columns(self) -> Mapping[Part, FieldType]:
        """As `GrowingTable.columns`."""
        ...

    def version_and_id(self) -> tuple[int, str]:
        """Its newest version, and the id of the table; -1 and nothing of one that is not there."""
        ...

    def changes_since(self, version: int) -> Changes | None:
        """What has happened to its rows after a version; None if nobody knows."""
        ...


class LatestRows(Protocol):
    """A table of latest rows: one for each key."""

    def progress(self, pipeline: str) -> Shown | None:
        """What it shows; None if nobody knows, or it is not there.

        Raises:
            ForeignTable: There is something in the table's place, and it is not this pipeline's.
        """
        ...

    def version(self) -> int:
        """Its own newest version; -1 of one that is not there."""
        ...

    def fits(self, columns: Mapping[Part, FieldType]) -> bool:
        """Whether its columns are those of a typed table, or become so by new fields inside them.

        One that does not fit is made anew.

        Raises:
            ColumnsDiffer: No latest rows can be made of such columns.
        """
        ...

    def prepare(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """Make the table if it is not there; give the columns of one that fits their new fields.

        Raises:
            ForeignTable, TableAltered: As in `DataTable.prepare`.
            EngineFailed: It may be done or not; do it again.
        """
        ...


class Merger(Protocol):
    """Brings a table of latest rows up to date."""

    def merge(self, merge: Merge) -> None:
        """Do what is to be done, in one commit; nothing if that was done before.

        Raises:
            EngineFailed: It may be done or not; do it again.
        """
        ...


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """The table of latest rows of one pipeline.

    Attributes:
        spec: The pipeline of the typed table.
        control: The control table.
        typed: The typed table.
        latest: The table of latest rows.
        upsert: What a latest row is.
    """

    spec: PipelineSpec
    upsert: UpsertSpec
    control: ControlReader
    typed: TypedLog
    latest: LatestRows

    def next(self) -> Merge | None:
        """What brings the table up to date; None if it is. Needs no JVM, and writes nothing.

        Raises:
            ForeignTable, TableAltered: Something else is in the place of the table.
            TableBehindLedger, LedgerBehindTable, TableRestored: The typed table and the control
                table are not of one history.
        """
        ledger = checked_ledger(self.control, self.spec.name, self.typed)
        version, table_id = self.typed.version_and_id()
        columns = self.typed.columns()
        if len(columns) < len(Part):
            # Nothing has been decoded, or nothing that had both a key and a value.
            return None
        seen = self.latest.version()
        shown = self.latest.progress(self.spec.origin)
        known = shown if shown and shown.typed_table == table_id else None
        changes = self.typed.changes_since(known.version) if known else None
        appended = changes.appended if changes else ()
        topics = {*topics_of(ledger), *(plan.topic_id for plan in appended)}
        order = self._order(topics, ledger.topic_id)
        rule = rule_of(self.upsert, order)
        if known is None or known.rule != rule or not self.latest.fits(columns):
            changes = None
        if changes is None:
            known = None
        elif not changes:
            return None
        landed = {topic_id: ledger.landed_of(topic_id) for topic_id in topics}
        base = f"tidemark:{self.spec.origin}:upsert:{table_id}:{seen}"
        return Merge(
            how=how_to_merge(changes, landed, order),
            since=known.version if known else None,
            version=version,
            changes=changes or Changes(),
            order=order,
            typed_table=table_id,
            rule=rule,
            base=known.base if known else base,
        )

    def execute(self, merger: Merger) -> Merge | None:
        """Merge what is missing; what was merged, if anything was.

        Raises:
            EngineFailed: It may be done or not; do it again.
        """
        merge = self.next()
        if merge is None:
            return None
        self.latest.prepare(self.spec.origin, self.typed.columns())
        merger.merge(merge)
        log.info("merged pipeline=%s how=%s version=%d", self.spec.name, merge.how, merge.version)
        return merge

    def _order(self, topics: Collection[str], newest: str | None) -> tuple[str, ...]:
        """Incarnations of the topic, the oldest first: by the first plan of each."""
        first: dict[str, int] = {}
        if len(topics) > 1:
            for record in self.control.ledger(self.spec.origin).plans.values():
                first.setdefault(record.plan.topic_id, record.plan.sequence)
        return tuple(sorted(topics, key=lambda each: (each == newest, first.get(each, 0), each)))

"""Keeping a table of latest rows as its typed table says.

It has no offsets of its own to account for: all that it is made from is in the typed table, and how
far it is, as a version of that table, is in its own transactions. So whatever happens to the typed
table - landings in any order, replays, undo - it follows, and can be made anew at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from tidemark.core.decoding import Part
from tidemark.core.plan import PlanKind
from tidemark.core.spec import PipelineSpec
from tidemark.core.upserts import Changes, Merge, how_to_merge
from tidemark.ports import ControlReader, LatestRows, Merger, TypedLog
from tidemark.services.decoding import topics_of
from tidemark.services.recording import checked_ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """The table of latest rows of one pipeline.

    Attributes:
        spec: The pipeline of the typed table.
        control: The control table.
        typed: The typed table.
        latest: The table of latest rows.
    """

    spec: PipelineSpec
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
        version, table_id = self.typed.newest()
        if len(self.typed.columns()) < len(Part):
            # Nothing has been decoded, or nothing that had both a key and a value.
            return None
        app_id, since = self.latest.progress(self.spec.origin, table_id)
        changes = None if since is None else self.typed.changes(since)
        if changes is not None and not changes:
            return None
        appended = changes.appended if changes else ()
        topics = {*topics_of(ledger), *(plan.topic_id for plan in appended)}
        order = self._order(topics)
        landed = {topic_id: ledger.landed_of(topic_id) for topic_id in topics}
        return Merge(
            how=how_to_merge(changes, landed, order),
            since=since,
            version=version,
            changes=changes or Changes(),
            order=order,
            app_id=app_id,
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

    def _order(self, topics: Collection[str]) -> tuple[str, ...]:
        """Incarnations of the topic, the oldest first: by the first live plan of each."""
        first: dict[str, int] = {}
        if len(topics) > 1:
            for record in self.control.ledger(self.spec.origin).plans.values():
                if record.plan.kind is PlanKind.LIVE:
                    first.setdefault(record.plan.topic_id, record.plan.sequence)
        return tuple(sorted(topics, key=lambda topic_id: (first.get(topic_id, 0), topic_id)))

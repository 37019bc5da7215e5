"""Keeping a table small: small files become few, and files that nobody needs go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from tidemark.ingest.protocols import Clock, ControlReader, DataLog
from tidemark.ingest.recorder import checked_ledger
from tidemark.lake.errors import CompactionConflict
from tidemark.lake.retention import (
    PlanIsOver,
    StoredFile,
    TableFiles,
    UpkeepOutcome,
    Upkept,
    kept_for,
    over_in,
)


class Upkeep(Protocol):
    """Keeps one table small, beside whoever reads and writes it."""

    def look(self) -> TableFiles | None:
        """The newest version's files; None if there is no table.

        Raises:
            ForeignTable: It is not the one that it should be.
        """
        ...

    def compact(self) -> int:
        """Rewrite small files as fewer; changes no row. Returns the number of replaced files.

        Raises:
            CompactionConflict: Other commits removed these files; nothing was changed.
            EngineFailed: The compaction failed, or its answer was lost.
        """
        ...

    def reclaim(
        self, now: datetime, keep: timedelta, is_over: PlanIsOver, *, dry_run: bool = False
    ) -> Sequence[StoredFile]:
        """Remove files that are older than `keep` and that no version since then refers to.

        Args:
            now: The time by this machine's clock.
            keep: Versions that were the newest so long ago, or later, can be read.
            is_over: Plans whose files no driver can commit any more; read before this call.
            dry_run: Remove nothing, and use this machine's clock.

        Raises:
            ClockDiffers: The storage's clock differs; nothing was removed.
            EngineFailed: Some may be gone; do it again.
        """
        ...


log = logging.getLogger(__name__)

COMPACTIONS_TRIED = 3
"""Undo, replacement and other compactions refuse a compaction; landings do not."""


def plans_over(control: ControlReader, pipeline: str, data_log: DataLog) -> PlanIsOver:
    """Which plans of a pipeline are over now.

    Raises:
        ControlTruncated, TableBehindLedger, LedgerBehindTable, RepairUnfinished, TableRestored: The
            data table and the control table are not of one history. Nothing is to be removed
            before somebody has put that right, perhaps with a RESTORE.
    """
    # fence: doubtful-table-is-not-maintained
    return over_in(checked_ledger(control, pipeline, data_log))


def _no_plans() -> PlanIsOver:
    return lambda sequence: False  # noqa: ARG005  a table without plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Maintains one table, beside whoever lands in it, undoes plans, or reads it.

    Attributes:
        table: Its name for people: the pipeline's, for a data table.
        upkeep: The table.
        plans_over: Reads which plans nobody can land files of any more.
        now: The clock.
    """

    table: str
    upkeep: Upkeep
    now: Clock
    plans_over: Callable[[], PlanIsOver] = _no_plans

    def maintain(self, keep: timedelta, *, dry_run: bool = False) -> Upkept:
        """Compact the table, then remove files that no version younger than `keep` refers to.

        Args:
            keep: How long; longer if the table says so.
            dry_run: Only return the files to remove.

        Raises:
            RetentionTooShort: Readers, or a landing, may still need these files.
            ForeignTable: The table is another one.
            ClockDiffers: This machine's clock differs from the storage's; no file was removed.
            ControlTruncated, TableBehindLedger, LedgerBehindTable, RepairUnfinished, TableRestored:
                As in `plans_over`.
            EngineFailed: The engine or the storage failed; do it again.
        """
        before = self.upkeep.look()
        if before is None:
            return Upkept(table=self.table, outcome=UpkeepOutcome.NO_TABLE)
        keep = kept_for(self.table, keep, before.retention)
        # First: a plan that lands from here on is an open one, so its files stay.
        is_over = self.plans_over()
        replaced = None if dry_run else self._compacted()
        removed = self.upkeep.reclaim(self.now(), keep, is_over, dry_run=dry_run)
        outcome = UpkeepOutcome.DONE if replaced is not None else UpkeepOutcome.PUT_OFF
        done = Upkept(
            table=self.table,
            outcome=UpkeepOutcome.DRY_RUN if dry_run else outcome,
            before=before,
            after=before if dry_run else self.upkeep.look(),
            replaced=replaced or 0,
            removed=tuple(removed),
            keep=keep,
        )
        log.info("maintained %s", " ".join(f"{k}={v!r}" for k, v in done.as_record().items()))
        return done

    def _compacted(self) -> int | None:
        """How many files were replaced; None if others were in the way every time."""
        for attempt in range(1, COMPACTIONS_TRIED + 1):
            try:
                return self.upkeep.compact()
            except CompactionConflict as conflict:
                log.info("not compacted attempt=%d reason=%s", attempt, conflict.reason)
        return None

"""Clears a typed table, so that the next decode starts again from the bronze table.

A corrected schema may not fit the columns of the typed table. Without rows, the table can get any
columns, and the bronze table keeps every record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from tidemark.bronze.repair.errors import NothingToDo, UnexplainedRows
from tidemark.core.ledger import PlanRecord
from tidemark.core.offsets import size_of
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import TransactionConflict
from tidemark.silver.typed.decoder import DecodePlanner, topic_ids_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedTable:
    """The counts of a clearing, or of its dry run.

    Attributes:
        plans: Number of typed plans to undo.
        records: Number of records that leave the typed table and the quarantine.
        offsets: Number of offsets that the next decode decodes.
    """

    plans: int
    records: int
    offsets: int

    def as_record(self) -> dict[str, int]:
        """Return the numbers as plain values, for `--json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedClearing:
    """Undoes all plans of a typed table, and gives it the columns of the current spec.

    Attributes:
        planner: The planner of the typed table. Its table accepts columns of an earlier spec.
        replace_columns: Gives the table without rows the columns of the spec. Returns false if the
            table has rows.
    """

    planner: DecodePlanner
    replace_columns: Callable[[], bool]

    def clear(self, requested_by: str, reason: str, *, dry_run: bool = False) -> ClearedTable:
        """Undo all plans, then replace the columns. After an interruption, a repetition continues.

        Open plans are abandoned, so that no driver lands rows with the columns of an earlier spec.
        The bronze table does not change.

        Args:
            requested_by: The operator.
            reason: The operator's reason.
            dry_run: Only return the numbers.

        Raises:
            OnlyCopy: The bronze table lacks landed rows, or their number is unknown.
            HistoriesDiverge, QuarantineRestored: As `DecodePlanner.plan`.
            TableConflict, RemovalFenced, UnreadableFile: As `Undo.undo`.
            UnexplainedRows: The table has rows that no plan landed.
            CommitConflict: As `retry_on_conflict`.
        """
        self.planner.check_bronze()
        backlog, ledger = self.planner.backlog(), self.planner.control.ledger(self._pipeline)
        landed = [each.held_now for each in ledger.plans.values() if each.held_now]
        decoded = sum(size_of(ledger.landed_of(each)) for each in topic_ids_of(ledger))
        found = ClearedTable(
            plans=len(landed),
            records=sum(each.records for each in landed),
            offsets=decoded + backlog.missing - backlog.surplus,
        )
        if not dry_run:
            retry_on_conflict(lambda: self._attempt(requested_by, reason))
            log.info("cleared pipeline=%s plans=%d", self._pipeline, found.plans)
        return found

    @property
    def _pipeline(self) -> str:
        return self.planner.spec.name

    def _attempt(self, requested_by: str, reason: str) -> None:
        undo = self.planner.undo
        plans = self._plans()
        for record in plans:
            if record.undoing:
                # This undo blocks all other commands until it ends.
                undo.undo(record.plan.sequence, requested_by, reason)
        for record in plans:
            if record.is_open:
                # A plan that has landed is undone below.
                with suppress(NothingToDo):
                    self.planner.abandon.abandon(record.plan.sequence, requested_by, reason)
        for record in self._plans():
            if record.held_now is not None:
                undo.undo(record.plan.sequence, requested_by, reason)
        if self.replace_columns():
            return
        for record in self._plans():
            if record.is_open or record.held_now is not None:
                # A concurrent decode planned or landed this plan after the undos.
                raise TransactionConflict(pipeline=self._pipeline, sequence=record.plan.sequence)
        rows = self.planner.table.row_ranges()
        raise UnexplainedRows(
            pipeline=self._pipeline,
            sequence=min((each.sequence for each in rows), default=0),
            needed="no rows after the undo of all plans",
            seen=f"{sum(each.rows for each in rows)} rows",
        )

    def _plans(self) -> Sequence[PlanRecord]:
        """Return all plans, the newest first: a replacing plan before those that it replaced."""
        plans = self.planner.control.ledger(self._pipeline).plans
        return [plans[sequence] for sequence in sorted(plans, reverse=True)]

"""Maintenance of one table: compaction, then removal of unreferenced files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from tidemark.bronze.ingest.ledgers import check_ledger
from tidemark.bronze.ingest.protocols import Clock, ControlReader, DataLog
from tidemark.core.logs import LogFields
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import TableConflict
from tidemark.delta.unreferenced_files import IsPlanFinished, StoredFile, TableFiles
from tidemark.ops.maintenance.rules import (
    MaintenanceOutcome,
    MaintenanceResult,
    effective_retention,
    finished_plans_of,
)
from tidemark.spec.layout import Layout

log = logging.getLogger(__name__)


class MaintainedTable(Protocol):
    """A table that maintenance can compact and clean while other processes use it."""

    def current_files(self) -> TableFiles | None:
        """Return the files of the newest version; None if there is no table.

        Raises:
            ForeignTable: The table belongs to another pipeline.
        """

    def compact(self) -> int:
        """Replace small files by fewer, larger files. Return the number of replaced files.

        Raises:
            TableConflict: Other commits removed these files; nothing was changed.
            EngineFailed: The compaction failed, or its result is unknown.
        """

    def remove_unreferenced(
        self,
        now: datetime,
        retention: timedelta,
        is_finished: IsPlanFinished,
        *,
        dry_run: bool = False,
    ) -> Sequence[StoredFile]:
        """Remove files older than `retention` that no version within `retention` refers to.

        Args:
            now: The time by this machine's clock.
            retention: Versions that were the newest within this time remain readable.
            is_finished: Plans whose files no process can still commit; read before this call.
            dry_run: Remove nothing, and use this machine's clock.

        Returns:
            The removed files; in a dry run the files to remove.

        Raises:
            ClockDiffers: The storage's clock differs; nothing was removed.
            EngineFailed: The removal failed; some files may be removed. A repetition is safe.
        """


def finished_plans(control: ControlReader, pipeline: str, data_log: DataLog) -> IsPlanFinished:
    """Return a predicate for plans of a pipeline that no process can still land.

    Raises:
        HistoriesDiverge: The data table and the control table have different histories. No file may
            be removed before an operator repairs them, which may need a RESTORE.
        ControlConflict: The ledger is not current; read it again.
    """
    # fence: doubtful-table-is-not-maintained
    ledger = check_ledger(control, control.summary(pipeline), data_log)
    return finished_plans_of(ledger)


def _every_plan() -> IsPlanFinished:
    return lambda sequence: True  # noqa: ARG005  required by the protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Maintains one table while other processes land, undo and read.

    Attributes:
        name: The table's display name; for a data table the name of its pipeline.
        table: The table.
        now: The clock.
        finished_plans: Reads which plans no process can still land. By default, these are all
            plans: no process lands plans in a derived table, and a decode that loses its files
            before their commit writes new ones.
    """

    name: str
    table: MaintainedTable
    now: Clock
    finished_plans: Callable[[], IsPlanFinished] = _every_plan

    def maintain(self, retention: timedelta, *, dry_run: bool = False) -> MaintenanceResult:
        """Remove files that no version within the retention refers to, then compact the table.

        In this order, the removed files make room for the compacted ones on a full disk.

        Args:
            retention: How long old versions remain readable; the table's own property may make it
                longer.
            dry_run: Only return the files to remove.

        Raises:
            RetentionTooShort: Readers or a landing may still need the files.
            HistoriesDiverge: As in `finished_plans`.
            ForeignTable, ClockDiffers, EngineFailed: As in `MaintainedTable`.
        """
        before = self.table.current_files()
        if before is None:
            return MaintenanceResult(table=self.name, outcome=MaintenanceOutcome.NO_TABLE)
        retention = effective_retention(self.name, retention, before.retention)
        # Read first: a plan that lands after this line counts as open, so its files stay.
        is_finished = retry_on_conflict(self.finished_plans)
        removed = self.table.remove_unreferenced(
            self.now(), retention, is_finished, dry_run=dry_run
        )
        replaced = None if dry_run else self._compact()
        result = MaintenanceResult(
            table=self.name,
            outcome=_outcome(replaced, dry_run=dry_run),
            before=before,
            after=before if dry_run else self.table.current_files(),
            replaced=replaced or 0,
            removed=tuple(removed),
            retention=retention,
        )
        log.info("maintained %s", LogFields(result.as_record()))
        return result

    def _compact(self) -> int | None:
        """Return the number of replaced files; None if other commits prevented every attempt."""
        try:
            return retry_on_conflict(self.table.compact)
        except TableConflict:
            return None


def _outcome(replaced: int | None, *, dry_run: bool) -> MaintenanceOutcome:
    if dry_run:
        return MaintenanceOutcome.DRY_RUN
    if replaced is None:
        return MaintenanceOutcome.COMPACTION_DEFERRED
    return MaintenanceOutcome.MAINTAINED


def shared_maintenance(
    layout: Layout, wrap: Callable[[str, MaintainedTable], MaintainedTable], now: Clock
) -> list[Maintenance]:
    """Return the maintenance of the tables that pipelines share.

    Args:
        layout: Has the locations of the tables.
        wrap: Wraps adapters in tests of crashes.
        now: The clock.
    """
    from tidemark.delta.maintained_table import DeltaMaintainedTable
    from tidemark.delta.status_history import remove_old_statuses

    shared = {
        "control table": layout.control_table,
        "quality results": layout.quality_results,
        "status table": layout.status_table,
        "schemas table": layout.schema_table,
    }
    tables = {name: DeltaMaintainedTable(uri) for name, uri in shared.items()}
    remove_expired = partial(remove_old_statuses, layout.status_history)
    history = DeltaMaintainedTable(layout.status_history, remove_expired=remove_expired)
    return [
        Maintenance(name=name, table=wrap("maintenance", table), now=now)
        for name, table in {**tables, "status history": history}.items()
    ]

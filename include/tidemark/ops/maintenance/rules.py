"""Rules of maintenance: default retentions, finished plans, and the result for one table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from tidemark.core.ledger import Ledger
from tidemark.delta.unreferenced_files import (
    LONGEST_RETENTION,
    IsPlanFinished,
    StoredFile,
    TableFiles,
)
from tidemark.ops.maintenance.errors import RetentionTooShort

DEFAULT_RETENTION = timedelta(days=7)
"""Delta Lake's default: the time that a reader of an old version, a RESTORE or a landing may take.
"""
DEFAULT_KEEP_HOURS = DEFAULT_RETENTION // timedelta(hours=1)
"""`DEFAULT_RETENTION` in hours, for options and forms."""
MOST_KEEP_DAYS = LONGEST_RETENTION.days
MOST_KEEP_HOURS = LONGEST_RETENTION // timedelta(hours=1)
"""`LONGEST_RETENTION` in days and in hours, for options and forms."""
DEFAULT_DOCS_RETENTION = timedelta(days=90)
"""The retention of pages of quality checks; the check results have no retention."""


class MaintenanceOutcome(StrEnum):
    """The outcome of the maintenance of one table."""

    MAINTAINED = "maintained"
    """Small files are compacted, and unreferenced files are removed."""
    COMPACTION_DEFERRED = "compaction deferred"
    """Unreferenced files are removed. Concurrent commits prevented the compaction."""
    DRY_RUN = "draft"
    """Nothing was written or removed."""
    NO_TABLE = "no table yet"
    """The table does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceResult:
    """The result of the maintenance of one table.

    Attributes:
        table: The table's display name.
        outcome: The outcome.
        before: Files of the newest version before maintenance.
        after: Files of the newest version after maintenance; as before in a dry run.
        replaced: Number of small files that compaction replaced.
        removed: The removed files; in a dry run the files to remove.
        retention: How long a file stays after a commit has removed it from the table.
    """

    table: str
    outcome: MaintenanceOutcome
    before: TableFiles | None = None
    after: TableFiles | None = None
    replaced: int = 0
    removed: tuple[StoredFile, ...] = ()
    retention: timedelta = timedelta(0)

    @property
    def bytes_freed(self) -> int:
        """Size of the removed files."""
        return sum(file.size for file in self.removed)

    def as_record(self) -> dict[str, Any]:
        """Return the result as plain values, for `--json`."""
        return {
            "table": self.table,
            "outcome": self.outcome.value,
            "files_before": self.before.files if self.before else None,
            "files_after": self.after.files if self.after else None,
            "bytes_before": self.before.bytes if self.before else None,
            "bytes_after": self.after.bytes if self.after else None,
            "files_replaced": self.replaced,
            "files_removed": len(self.removed),
            "bytes_freed": self.bytes_freed,
            "retention_hours": self.retention / timedelta(hours=1),
        }


def effective_retention(
    table: str, requested: timedelta, configured: timedelta | None
) -> timedelta:
    """Return the longer one of the requested and the table's configured retention.

    A retention of more than `LONGEST_RETENTION` keeps every file, and counts as this one.

    Args:
        table: The table's display name.
        requested: The retention that the caller of maintenance requests.
        configured: The retention in the table's properties; None without one.

    Raises:
        RetentionTooShort: The request is below a week and below the table's own retention.
    """
    minimum = DEFAULT_RETENTION if configured is None else min(configured, DEFAULT_RETENTION)
    if requested < minimum:
        hour = timedelta(hours=1)
        raise RetentionTooShort(
            table=table, requested_hours=requested // hour, minimum_hours=-(-minimum // hour)
        )
    longer = requested if configured is None else max(requested, configured)
    return min(longer, LONGEST_RETENTION)


def finished_plans_of(ledger: Ledger) -> IsPlanFinished:
    """Return a predicate for plans that no process can still land.

    These are the plans that are landed or abandoned in the ledger, unless an undo is in progress. A
    plan that is not in the ledger may be newer than the ledger, so it is not finished.
    """
    unfinished = {r.plan.sequence for r in ledger.plans.values() if r.is_open or r.undoing}
    return lambda sequence: (
        sequence <= ledger.last_sequence  # fence: files-of-newer-plans-stay
        and sequence not in unfinished  # fence: files-of-open-plans-stay
    )

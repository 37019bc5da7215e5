"""Plans whose rows an undo, a RESTORE or a replacement removed from the data table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tidemark.bronze.ingest.protocols import ControlReader
from tidemark.core.events import Abandoned, EventKind
from tidemark.core.ledger import PlanRecord


class Removal(StrEnum):
    """How a landed plan lost rows."""

    UNDONE = "undone"
    """An undo or a RESTORE removed all rows."""
    REPLACED = "replaced"
    """Later plans replaced all rows."""
    PARTLY_REPLACED = "partly replaced"
    """Later plans replaced some rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRows:
    """A landed plan that lost rows.

    Attributes:
        plan: Plan number.
        removal: How the plan lost rows.
        removed_at: Time of the newest removal; None if its event is lost.
        replaced_by: Plans that replaced rows, oldest first.
        reason: The operator's reason of an undo.
    """

    plan: int
    removal: Removal
    removed_at: datetime | None
    replaced_by: tuple[int, ...] = ()
    reason: str | None = None


def read_removed_rows(
    control: ControlReader, pipeline: str, records: Iterable[PlanRecord]
) -> Mapping[int, RemovedRows]:
    """Return which of some plans lost rows, by plan number.

    Args:
        control: The control table.
        pipeline: Pipeline name.
        records: The plans with their current state.
    """
    records = list(records)
    changed = [each for each in records if each.superseded or each.cancelled_by]
    if not changed:
        return {}
    landed_at = control.recorded_at(pipeline, EventKind.LANDED)
    undone_at = {
        **control.recorded_at(pipeline, EventKind.UNDONE),
        **control.recorded_at(pipeline, EventKind.UNDO_STARTED),
    }
    found = (_removed_rows(each, landed_at, undone_at) for each in changed)
    return {each.plan: each for each in found if each}


def _removed_rows(
    record: PlanRecord, landed_at: Mapping[int, datetime], undone_at: Mapping[int, datetime]
) -> RemovedRows | None:
    number = record.plan.sequence
    if record.cancelled_by is not None:
        if isinstance(record.cancelled_by, Abandoned):
            return None
        return RemovedRows(
            plan=number,
            removal=Removal.UNDONE,
            removed_at=undone_at.get(number),
            reason=record.cancelled_by.reason,
        )
    replaced_by = tuple(each.by for each in record.superseded if each.by in landed_at)
    if record.held_now is None or not replaced_by:
        return None
    return RemovedRows(
        plan=number,
        removal=Removal.PARTLY_REPLACED if record.held_now.counts else Removal.REPLACED,
        removed_at=max(landed_at[by] for by in replaced_by),
        replaced_by=replaced_by,
    )

"""Plans with the events that recorded them, for pages and reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tidemark.core.event_rows import Row, decode
from tidemark.core.events import Abandoned, EventKind
from tidemark.core.ledger import Ledger, PlanRecord


class PlanState(StrEnum):
    """State of a plan."""

    OPEN = "open"
    """Recorded, and not landed yet."""
    LANDED = "landed"
    """Its rows are in the data table."""
    REPLACED = "replaced"
    """Newer plans replaced all of its ranges."""
    ABANDONED = "abandoned"
    """It was abandoned before it landed."""
    UNDOING = "being undone"
    """An undo is removing its rows."""
    UNDONE = "undone"
    """Its rows were removed."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlanEvent:
    """One step of a plan in the control table.

    Attributes:
        number: Event number of the pipeline.
        kind: What happened.
        recorded_at: Time of the record (UTC).
        requested_by: The run or operator; None for steps without one.
        reason: The operator's reason; None without one.
        superseded_by: The plan that replaced rows; None for other steps.
        status: The status of a publication decision; None for other steps.
    """

    number: int
    kind: EventKind
    recorded_at: datetime
    requested_by: str | None = None
    reason: str | None = None
    superseded_by: int | None = None
    status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEntry:
    """A plan and its events.

    Attributes:
        record: The plan with its current state.
        events: Its events, oldest first.
    """

    record: PlanRecord
    events: tuple[PlanEvent, ...]

    @property
    def planned_at(self) -> datetime | None:
        """Time at which the plan was recorded; None if its event is lost."""
        return self._first(EventKind.PLANNED)

    @property
    def landed_at(self) -> datetime | None:
        """Time at which its landing was first recorded; None before it."""
        return self._first(EventKind.LANDED)

    @property
    def state(self) -> PlanState:
        """The current state."""
        record = self.record
        if record.is_open:
            return PlanState.OPEN
        if record.undoing:
            return PlanState.UNDOING
        if record.cancelled_by is not None:
            is_abandoned = isinstance(record.cancelled_by, Abandoned)
            return PlanState.ABANDONED if is_abandoned else PlanState.UNDONE
        replaced = record.held_now and record.superseded and not record.held_now.counts
        return PlanState.REPLACED if replaced else PlanState.LANDED

    def _first(self, kind: EventKind) -> datetime | None:
        return min((each.recorded_at for each in self.events if each.kind is kind), default=None)


def superseding_plans(rows: Iterable[Row]) -> Collection[int]:
    """Return the numbers of the plans that replace rows of the plans of some rows."""
    return {row["superseded_by"] for row in rows if row["event"] == EventKind.SUPERSEDED}


def plan_history(pipeline: str, rows: Iterable[Row], first: int, end: int) -> list[PlanEntry]:
    """Return the plans with numbers `[first, end)`, newest first.

    Args:
        pipeline: Pipeline name.
        rows: All rows of these plans and of their `superseding_plans`, from the control table.
        first: Lowest plan number.
        end: Number after the highest one.
    """
    rows = list(rows)
    events: dict[int, set[PlanEvent]] = {}
    for row in rows:
        events.setdefault(row["plan_sequence"], set()).add(
            PlanEvent(
                number=row["event_number"],
                kind=EventKind(row["event"]),
                recorded_at=row["recorded_at"],
                requested_by=row.get("requested_by"),
                reason=row.get("reason"),
                superseded_by=row.get("superseded_by"),
                status=row.get("status"),
            )
        )
    plans = Ledger.fold(pipeline, decode(pipeline, rows)).plans
    return [
        PlanEntry(record=plans[number], events=tuple(sorted(events[number], key=_by_number)))
        for number in sorted(plans, reverse=True)
        if first <= number < end
    ]


def _by_number(event: PlanEvent) -> int:
    return event.number

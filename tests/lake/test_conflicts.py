"""Retries of a step that met a concurrent writer."""

from __future__ import annotations

import pytest

from tidemark.lake.conflicts import retry_on_conflict
from tidemark.lake.errors import ControlConflict, TransactionConflict


class Contested:
    """A step that other processes win some times before it succeeds."""

    def __init__(self, *conflicts: Exception) -> None:
        self.conflicts = list(conflicts)
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        if self.conflicts:
            raise self.conflicts.pop(0)
        return "done"


def conflict(number: int = 1) -> ControlConflict:
    return ControlConflict(pipeline="events", event_number=number)


def test_a_step_is_repeated_until_it_has_no_conflict() -> None:
    """Conflicts of the control table and of the data table."""
    step = Contested(
        conflict(), TransactionConflict(pipeline="events", sequence=1), conflict(), conflict()
    )
    assert retry_on_conflict(step) == "done"
    assert step.runs == 5


def test_after_five_conflicts_the_last_one_is_raised() -> None:
    """It names the event that another process wrote."""
    step = Contested(*map(conflict, range(1, 7)))
    with pytest.raises(ControlConflict) as raised:
        retry_on_conflict(step)
    assert (step.runs, raised.value.event_number) == (5, 5)


def test_other_errors_are_not_retried() -> None:
    """They are not the result of a race."""
    step = Contested(ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        retry_on_conflict(step)
    assert step.runs == 1

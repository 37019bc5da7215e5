"""Tests of retries after conflicts with concurrent writers."""

from __future__ import annotations

import pytest

from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import ControlConflict, TransactionConflict


class StepWithConflicts:
    """A step that raises these errors before it succeeds."""

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
    step = StepWithConflicts(
        conflict(), TransactionConflict(pipeline="events", sequence=1), conflict(), conflict()
    )
    assert retry_on_conflict(step) == "done"
    assert step.runs == 5


def test_after_five_conflicts_the_last_one_is_raised() -> None:
    step = StepWithConflicts(*map(conflict, range(1, 7)))
    with pytest.raises(ControlConflict) as raised:
        retry_on_conflict(step)
    assert (step.runs, raised.value.event_number) == (5, 5)


def test_other_errors_are_not_retried() -> None:
    step = StepWithConflicts(ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        retry_on_conflict(step)
    assert step.runs == 1

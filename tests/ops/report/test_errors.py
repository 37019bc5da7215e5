"""Texts of alarms that depend on the number of plans."""

from __future__ import annotations

import pytest

from tidemark.ops.report.errors import PlansBlocked


@pytest.mark.parametrize(
    ("plans", "named", "others"),
    [
        ((3,), "plan 3", ""),
        ((3, 4), "plans 3, 4", " Then do the same for plan 4."),
        ((3, 4, 6), "plans 3, 4, 6", " Then do the same for plans 4, 6."),
    ],
)
def test_the_fix_of_blocked_plans_names_every_plan(
    plans: tuple[int, ...], named: str, others: str
) -> None:
    error = PlansBlocked(pipeline="orders", plans=plans)
    assert error.rendered("problem") == (
        f"The published view of pipeline 'orders' lacks the rows of {named}, "
        "because a quality check failed."
    )
    fix = error.rendered("fix")
    assert "run `tidemark check orders --plan 3`" in fix
    assert fix.endswith(f"`tidemark publication reject orders --plan 3 --reason TEXT`.{others}")

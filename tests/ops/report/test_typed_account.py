"""The account of landed records in the typed table and the quarantine, by its numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.core.errors import TidemarkError
from tidemark.delta.errors import ForeignTable
from tidemark.ops.report.typed_account import PlanAccount, TypedAccount
from tidemark.silver.typed.state import DecodeBacklog, TypedState


def account(
    records: int,
    rows: int | None = 8,
    missing_rows: int | None = 0,
    error: TidemarkError | None = None,
    **backlog: Any,
) -> TypedAccount | None:
    """Return the account of a typed table with these rows and one record in quarantine."""
    state = TypedState(backlog=DecodeBacklog(**backlog), rows=rows, quarantined=1, error=error)
    return TypedAccount.of("events", records, missing_rows, state)


@pytest.mark.parametrize(
    ("found", "unaccounted", "equation"),
    [
        (account(9), 0, "9 landed records = 8 typed rows + 1 record in quarantine"),
        (account(10), 1, "10 landed records = 8 typed rows + 1 record in quarantine + 1 record in"),
        (
            account(7),
            -2,
            "7 landed records = 8 typed rows + 1 record in quarantine - 2 records too",
        ),
        (account(12, missing=5), 0, "+ 3 records in neither (5 offsets to decode)"),
        (account(12, missing=2), 1, "+ 3 records in neither (2 offsets to decode)"),
        (account(12, unchecked=1, refused=2), 0, "(1 offset unchecked, 2 offsets not published)"),
        (account(7, surplus=2), 0, "- 2 records too many (2 offsets to remove)"),
        (account(7, surplus=1), -1, "- 2 records too many (1 offset to remove)"),
        (account(10, missing_rows=1), 0, "in neither (1 row missing in the data table)"),
        (account(10, missing_rows=None), None, "+ 1 record in neither"),
        (account(10, quarantine_behind=True), None, "in neither (the quarantine is behind)"),
        (
            account(10, error=ForeignTable(target="t", difference="d")),
            None,
            "+ 1 record in neither",
        ),
    ],
)
def test_only_waiting_hidden_and_missing_offsets_explain_a_difference(
    found: TypedAccount, unaccounted: int | None, equation: str
) -> None:
    assert found.unaccounted == unaccounted
    assert equation in found.equation()
    assert (found.problem() is not None) is bool(unaccounted)


def test_a_table_whose_rows_cannot_be_counted_has_no_account() -> None:
    assert account(9, rows=None) is None


def test_plans_whose_differences_cancel_out_are_a_problem() -> None:
    """A typed row of a plan was deleted, and one of another plan was doubled."""
    found = account(9)
    plans = [
        PlanAccount(plan=number, records=3, typed_rows=rows, quarantined=0)
        for number, rows in ((1, 2), (2, 4))
    ]
    assert found
    assert found.is_followed
    assert found.problem(plans) == (
        "typed rows and quarantine differ from the landed records of 2 plans"
    )

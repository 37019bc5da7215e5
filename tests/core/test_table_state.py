"""Tests of the comparison of a ledger with a data table's log."""

from __future__ import annotations

import pytest

from tests.support.plans import make_plan
from tidemark.core.accounting import Landing
from tidemark.core.errors import (
    LedgerBehindTable,
    OverfullRange,
    RepairUnfinished,
    TableBehindLedger,
)
from tidemark.core.events import Abandoned, Landed, Planned
from tidemark.core.ledger import Ledger
from tidemark.core.table_state import FENCED_VERSION, Restore, TableState, check_table

LIVE = "tidemark:events:0"


def ledger() -> Ledger:
    """Return a ledger: plan 1 landed in version 1, plan 2 is abandoned, plan 3 is open."""
    first, second, third = (make_plan((0, n, n + 1), sequence=n) for n in (1, 2, 3))
    landing = Landing.of(first, 1, {0: 1})
    return Ledger.fold(
        "events",
        [
            (1, [Planned(plan=first)]),
            (2, [Landed(plan=first, landing=landing, committed={0: 2})]),
            (3, [Planned(plan=second)]),
            (4, [Abandoned(sequence=2, requested_by="ops", reason="too large")]),
            (5, [Planned(plan=third)]),
        ],
    )


def state(newest: int, *restores: Restore, backfill: int = 0) -> TableState:
    """Return the state of a table whose newest live plan is `newest`."""
    transactions = {LIVE: newest, f"{LIVE}:backfill": backfill}
    return TableState(
        transactions={app_id: number for app_id, number in transactions.items() if number},
        restores=restores,
    )


@pytest.mark.parametrize("newest", [2, 3])
def test_table_with_all_settled_plans_passes_the_check(newest: int) -> None:
    """Recovery decides whether the open plan has landed."""
    check_table(ledger(), state(newest))


@pytest.mark.parametrize(
    ("table", "error", "problem"),
    [
        (state(0), TableBehindLedger, "lacks plans"),
        (state(1), TableBehindLedger, "lacks plans"),
        (state(4), LedgerBehindTable, "lacks a plan"),
        (state(3, backfill=1), LedgerBehindTable, "lacks a plan"),
        (state(FENCED_VERSION), RepairUnfinished, "running or was interrupted"),
        (state(3, Restore(at=2, to=0)), TableBehindLedger, "A RESTORE"),
    ],
)
def test_i5_table_with_another_history_raises(
    table: TableState, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        check_table(ledger(), table)


def test_restore_that_keeps_every_landing_passes_the_check() -> None:
    check_table(ledger(), state(3, Restore(at=5, to=1)))


def test_reverted_restore_passes_the_check() -> None:
    """A RESTORE to version 0 and then to version 3, which had every landing."""
    back, forth = Restore(at=4, to=0), Restore(at=5, to=3)
    check_table(ledger(), state(3, forth, back))
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        check_table(ledger(), state(3, Restore(at=4, to=3), Restore(at=5, to=0)))


def test_i1_landing_with_more_records_than_offsets_raises() -> None:
    """The rows are duplicated; a negative number of gaps would hide it."""
    with pytest.raises(OverfullRange):
        Landing.of(make_plan((0, 0, 5)), 1, {0: 6})

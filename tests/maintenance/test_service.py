"""The order of maintenance, and what it does when others are in the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from tests.support.plans import MemoryPipeline
from tests.support.services import NOW
from tidemark.core.errors import LedgerBehindTable
from tidemark.lake.errors import CompactionConflict, EngineFailed
from tidemark.lake.retention import PlanIsOver, StoredFile, TableFiles, UpkeepOutcome
from tidemark.maintenance.service import COMPACTIONS_TRIED, Maintenance, plans_over

WEEK = timedelta(days=7)
LEFT = StoredFile(path="part-1.parquet", size=10, modified_ms=0)


@dataclass
class NotedUpkeep:
    """Notes the steps that are taken; compactions meet so many conflicts.

    Attributes:
        conflicts: How many compactions others are in the way of.
        steps: What was done.
        before: What reclaim was told.
    """

    conflicts: int = 0
    steps: list[str] = field(default_factory=list)
    before: datetime | None = None

    def look(self) -> TableFiles:
        """Five files."""
        self.steps.append("look")
        return TableFiles(files=5, bytes=50, retention=None)

    def compact(self) -> int:
        """Four files, if nobody is in the way."""
        self.steps.append("compact")
        if self.conflicts:
            self.conflicts -= 1
            raise CompactionConflict(table="t", reason="rows were removed")
        return 4

    def reclaim(
        self,
        now: datetime,
        keep: timedelta,
        is_over: PlanIsOver,  # noqa: ARG002  the port's
        *,
        dry_run: bool = False,
    ) -> Sequence[StoredFile]:
        """One file."""
        self.steps.append("reclaim dry" if dry_run else "reclaim")
        self.before = now - keep
        return [LEFT]


def maintenance(upkeep: NotedUpkeep) -> Maintenance:
    """Maintenance that notes when it asks which plans are over."""

    def over() -> PlanIsOver:
        upkeep.steps.append("plans")
        return lambda _: True

    return Maintenance(table="t", upkeep=upkeep, plans_over=over, now=lambda: NOW)


def test_plans_are_asked_for_before_files_are_looked_for() -> None:
    """A plan that lands in between is an open one; the retention counts from now."""
    upkeep = NotedUpkeep()
    done = maintenance(upkeep).maintain(WEEK)
    assert upkeep.steps == ["look", "plans", "compact", "reclaim", "look"]
    assert upkeep.before == NOW - WEEK
    assert (done.replaced, done.bytes_freed, done.outcome) == (4, 10, UpkeepOutcome.DONE)


@pytest.mark.parametrize(
    ("conflicts", "tried", "outcome"),
    [
        (COMPACTIONS_TRIED - 1, COMPACTIONS_TRIED, UpkeepOutcome.DONE),
        (COMPACTIONS_TRIED + 9, COMPACTIONS_TRIED, UpkeepOutcome.PUT_OFF),
    ],
)
def test_a_compaction_that_meets_others_is_tried_some_times(
    conflicts: int, tried: int, outcome: UpkeepOutcome
) -> None:
    """Then it is left to the next maintenance; what nobody needs goes all the same."""
    upkeep = NotedUpkeep(conflicts=conflicts)
    assert maintenance(upkeep).maintain(WEEK).outcome is outcome
    assert (upkeep.steps.count("compact"), upkeep.steps.count("reclaim")) == (tried, 1)


def test_a_dry_run_compacts_nothing() -> None:
    """And says so."""
    upkeep = NotedUpkeep()
    assert maintenance(upkeep).maintain(WEEK, dry_run=True).outcome is UpkeepOutcome.DRY_RUN
    assert upkeep.steps == ["look", "plans", "reclaim dry"]


def test_the_outcome_as_plain_values() -> None:
    """For `--json` and for Airflow."""
    assert maintenance(NotedUpkeep()).maintain(WEEK).as_record() == {
        "table": "t",
        "outcome": "maintained",
        "files_before": 5,
        "files_after": 5,
        "bytes_before": 50,
        "bytes_after": 50,
        "files_replaced": 4,
        "files_removed": 1,
        "bytes_freed": 10,
        "kept_hours": 168.0,
    }


def test_which_plans_are_over() -> None:
    """Landed or given up, and known; not open, not being undone, not to come."""
    pipeline = MemoryPipeline()
    for number in range(2):
        pipeline.produce(0, 2)
        pipeline.run(f"run {number}")
    pipeline.produce(0, 2)
    pipeline.planner.plan("given up")
    pipeline.abandon.abandon(3, "ops", "x")
    pipeline.table.discard = _refuse  # type: ignore[method-assign]
    with pytest.raises(EngineFailed):
        pipeline.undo.undo(2, "ops", "x")
    pipeline.planner.plan("open")
    is_over = plans_over(pipeline.control, "events", pipeline.table)
    assert [sequence for sequence in range(1, 7) if is_over(sequence)] == [1, 3]


def _refuse(plan: object) -> tuple[int, int]:
    raise EngineFailed(operation="removing", reason=str(plan))


def test_a_control_table_that_is_gone_is_told() -> None:
    """I7: nobody knows which plans are over."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("run")
    other = MemoryPipeline()
    with pytest.raises(LedgerBehindTable):
        plans_over(other.control, "events", pipeline.table)

"""Maintenance of one table: its steps, conflicts and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from tests.support.plans import MemoryPipeline
from tests.support.services import NOW
from tidemark.core.errors import LedgerBehindTable
from tidemark.core.plan import Plan
from tidemark.core.table_state import TableState
from tidemark.delta.errors import EngineFailed, TableConflict
from tidemark.delta.unreferenced_files import IsPlanFinished, StoredFile, TableFiles
from tidemark.ops.maintenance.rules import MaintenanceOutcome
from tidemark.ops.maintenance.service import Maintenance, finished_plans

WEEK = timedelta(days=7)
UNREFERENCED = StoredFile(path="part-1.parquet", size=10, modified_ms=0)


@dataclass
class RecordingTable:
    """Records its calls, and raises a number of conflicts.

    Attributes:
        conflicts: How many compactions still fail with a conflict.
        steps: Names of the calls.
        before: The time that `remove_unreferenced` computed from its arguments.
    """

    conflicts: int = 0
    steps: list[str] = field(default_factory=list)
    before: datetime | None = None

    def current_files(self) -> TableFiles:
        """Return a table of five files."""
        self.steps.append("current_files")
        return TableFiles(files=5, bytes=50, retention=None)

    def compact(self) -> int:
        """Replace four files, or raise the next conflict."""
        self.steps.append("compact")
        if self.conflicts:
            self.conflicts -= 1
            raise TableConflict.of_files("t", "rows were removed")
        return 4

    def remove_unreferenced(
        self,
        now: datetime,
        keep: timedelta,
        is_finished: IsPlanFinished,  # noqa: ARG002  required by the protocol
        *,
        dry_run: bool = False,
    ) -> Sequence[StoredFile]:
        """Remove one file."""
        self.steps.append("dry run" if dry_run else "remove_unreferenced")
        self.before = now - keep
        return [UNREFERENCED]


def maintenance(table: RecordingTable) -> Maintenance:
    """Return maintenance that records when it reads finished plans."""

    def read_plans() -> IsPlanFinished:
        table.steps.append("plans")
        return lambda _: True

    return Maintenance(name="t", table=table, finished_plans=read_plans, now=lambda: NOW)


def test_finished_plans_are_read_before_files_are_listed() -> None:
    """A plan that lands in between counts as open. The retention starts now."""
    table = RecordingTable()
    done = maintenance(table).maintain(WEEK)
    assert table.steps == [
        "current_files",
        "plans",
        "remove_unreferenced",
        "compact",
        "current_files",
    ]
    assert table.before == NOW - WEEK
    assert (done.replaced, done.bytes_freed, done.outcome) == (4, 10, MaintenanceOutcome.MAINTAINED)


@pytest.mark.parametrize(
    ("conflicts", "outcome"),
    [(4, MaintenanceOutcome.MAINTAINED), (9, MaintenanceOutcome.COMPACTION_DEFERRED)],
)
def test_a_conflicting_compaction_is_retried_a_bounded_number_of_times(
    conflicts: int, outcome: MaintenanceOutcome
) -> None:
    """The next maintenance compacts the table. Unreferenced files are removed now."""
    table = RecordingTable(conflicts=conflicts)
    assert maintenance(table).maintain(WEEK).outcome is outcome
    assert (table.steps.count("compact"), table.steps.count("remove_unreferenced")) == (5, 1)


def test_a_dry_run_compacts_nothing() -> None:
    """Its outcome is a draft."""
    table = RecordingTable()
    assert maintenance(table).maintain(WEEK, dry_run=True).outcome is MaintenanceOutcome.DRY_RUN
    assert table.steps == ["current_files", "plans", "dry run"]


def test_a_maintenance_result_as_record_has_plain_values() -> None:
    """`--json` and Airflow use the record."""
    assert maintenance(RecordingTable()).maintain(WEEK).as_record() == {
        "table": "t",
        "outcome": "maintained",
        "files_before": 5,
        "files_after": 5,
        "bytes_before": 50,
        "bytes_after": 50,
        "files_replaced": 4,
        "files_removed": 1,
        "bytes_freed": 10,
        "retention_hours": 168.0,
    }


def test_landed_and_abandoned_plans_are_finished() -> None:
    """Open plans, plans of an unfinished undo, and newer plans are not."""
    pipeline = MemoryPipeline()
    for number in range(2):
        pipeline.produce(0, 2)
        pipeline.run(f"run {number}")
    pipeline.produce(0, 2)
    pipeline.planner.plan("abandoned")
    pipeline.abandon.abandon(3, "ops", "x")
    pipeline.table.remove_rows = _refuse  # type: ignore[method-assign]
    with pytest.raises(EngineFailed):
        pipeline.undo.undo(2, "ops", "x")
    pipeline.planner.plan("open")
    is_finished = finished_plans(pipeline.control, "events", pipeline.table)
    assert [sequence for sequence in range(1, 7) if is_finished(sequence)] == [1, 3]


def _refuse(plan: Plan, epoch: int, seen: TableState) -> tuple[int, int]:
    raise EngineFailed(operation="removing", reason=f"{plan} in epoch {epoch} after {seen}")


def test_reading_finished_plans_of_a_missing_control_table_is_an_error() -> None:
    """I7: no file of an unknown plan may be removed."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("run")
    other = MemoryPipeline()
    with pytest.raises(LedgerBehindTable):
        finished_plans(other.control, "events", pipeline.table)

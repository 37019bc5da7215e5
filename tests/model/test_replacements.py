"""Random sequences of whole operations; after each the ledger equals the table.

The state machine interleaves single steps and rarely reaches a RESTORE over an undone replacement.
Here, each operation ends before the next one starts, and each damage is repaired at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tests.support.memory import MemoryRow
from tests.support.plans import MemoryPipeline, wanted
from tidemark.bronze.ingest.errors import PlanStillOpen
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.errors import PlanCannotLand, TidemarkError
from tidemark.core.event_rows import Row
from tidemark.core.origins import RunOrigin

pytestmark = pytest.mark.slow


@dataclass
class Operations:
    """Operations of an operator and a scheduler on a pipeline of one partition.

    Attributes:
        chance: Chooses operations.
        pipeline: The pipeline.
        backup: Rows and newest event numbers of a backup of the control table; None without one.
        done: Names of operations, for the message of a failure.
    """

    chance: Random
    pipeline: MemoryPipeline = field(default_factory=lambda: MemoryPipeline(partitions=1))
    backup: tuple[list[Row], dict[str, int]] | None = None
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pipeline.produce(0, 6)
        self.pipeline.run("first")

    def run(self) -> None:
        self.pipeline.produce(0, 2)
        self.pipeline.run(f"run-{len(self.done)}")

    def replace(self) -> None:
        self._plan_again(land=True)

    def plan_again(self) -> None:
        """Plan a replacement without landing it."""
        self._plan_again(land=False)

    def _plan_again(self, *, land: bool) -> None:
        end = self.pipeline.kafka.topics["events"][0].end
        start = self.chance.randrange(end)
        request = wanted((0, start, min(end, start + self.chance.randrange(1, 6))))
        name = f"replace-{len(self.done)}"
        plan = self.pipeline.planner.backfill(replace(request, replaces=True), RunOrigin(name)).plan
        if plan and land:
            self.pipeline.ingest.execute(plan.sequence)

    def undo(self) -> None:
        plans = [n for n, record in self.pipeline.ledger.plans.items() if record.held_now]
        if plans:
            self.pipeline.undo.undo(self.chance.choice(plans), "ops", "a test", allow_loss=True)

    def abandon(self) -> None:
        for record in self.pipeline.ledger.open_plans():
            self.pipeline.abandon.abandon(record.plan.sequence, "ops", "a test")

    def restore(self) -> None:
        self.pipeline.table.restore(self.chance.randrange(1, len(self.pipeline.table.commits) + 1))
        self._rebuild()

    def lose_control(self) -> None:
        self.pipeline.control.rows, self.pipeline.control.newest = [], {}
        self._rebuild()

    def back_up_control(self) -> None:
        control = self.pipeline.control
        self.backup = (list(control.rows), dict(control.newest))

    def restore_control(self) -> None:
        if self.backup:
            rows, newest = self.backup
            self.pipeline.control.rows, self.pipeline.control.newest = list(rows), dict(newest)
            self._rebuild()

    def _rebuild(self) -> None:
        try:
            self.pipeline.repair.rebuild("ops", "a test")
        except NothingToDo:
            self.done.append("nothing to repair")

    def one(self, names: tuple[str, ...]) -> None:
        """Perform a random operation, which may be refused."""
        name = self.chance.choice(names)
        self.done.append(name)
        operation: Callable[[], None] = getattr(self, name)
        try:
            operation()
        except PlanStillOpen:
            self.done.append("refused")

    def check(self) -> None:
        """Check that the ledger and its summary equal the table."""
        ledger, summary = self.pipeline.ledger, self.pipeline.control.summary("events")
        assert (summary.landed, summary.pending) == (ledger.landed, ledger.pending), self.done
        assert summary.records == ledger.records, self.done
        recorded = {
            (record.plan.topic_id, partition, offset, number)
            for number, record in ledger.plans.items()
            if record.held_now
            for partition, spans in record.held_now.spans().items()
            for span in spans
            for offset in range(span.start, span.end)
        }
        rows: list[MemoryRow] = self.pipeline.table.rows
        assert (len(rows), set(rows)) == (len(recorded), recorded), self.done

    def settle(self) -> None:
        """Land everything, and check that each record is in the table once."""
        for record in self.pipeline.ledger.open_plans():
            try:
                self.pipeline.ingest.execute(record.plan.sequence)
            except PlanCannotLand:
                # The control table has lost the event that abandoned the plan.
                self.abandon()
        self.pipeline.run("last")
        self.check()
        visible = self.pipeline.visible_identities()
        assert self.pipeline.landed_identities() == visible, self.done


DAILY = ("run", "replace", "replace", "plan_again", "undo", "abandon")
"""Operations without damage."""


@pytest.mark.parametrize(
    "damages",
    [(), ("restore",), ("lose_control",), ("back_up_control", "restore_control")],
    ids=["none", "RESTORE", "lost control table", "control table from a backup"],
)
@pytest.mark.parametrize(
    "histories", [60, pytest.param(2_000, marks=pytest.mark.faults)], ids=["few", "many"]
)
def test_ledger_equals_table_after_operations(damages: tuple[str, ...], histories: int) -> None:
    for seed in range(histories):
        check_history(seed, damages)


@pytest.mark.parametrize(
    ("seed", "damages"), [(70, ("restore",)), (543, ("back_up_control", "restore_control"))]
)
def test_a_plan_removed_twice_is_rewound_once(seed: int, damages: tuple[str, ...]) -> None:
    """Two equal events would count as duplicates."""
    check_history(seed, damages)


def check_history(seed: int, damages: tuple[str, ...]) -> None:
    """Perform nine random operations, and compare the ledger with the table after each."""
    operations = Operations(Random(seed))
    try:
        for _ in range(9):
            operations.one((*DAILY, *damages))
            operations.check()
        operations.settle()
    except TidemarkError as error:
        raise AssertionError(f"seed {seed}: {operations.done}") from error

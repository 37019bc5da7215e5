"""Whole operations in any order, replacements among them: after each the ledger is the table.

The state machine interleaves single steps and rarely comes to a RESTORE over a replacement that was
undone. Here each operation ends before the next begins, and each trouble is repaired at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tests.support.memory import MemoryRow
from tests.support.plans import MemoryPipeline, wanted
from tidemark.core.errors import TidemarkError
from tidemark.core.event_rows import Row
from tidemark.core.origins import RunOrigin
from tidemark.ingest.errors import BackfillOpen, PlanFenced
from tidemark.repair.errors import NothingToDo


@dataclass
class Operations:
    """What a person and a scheduler do to one pipeline of one partition.

    Attributes:
        chance: Decides.
        pipeline: The pipeline.
        backup: Rows and newest event numbers of the control table, once somebody has kept them.
        done: For a failure's message.
    """

    chance: Random
    pipeline: MemoryPipeline = field(default_factory=lambda: MemoryPipeline(partitions=1))
    backup: tuple[list[Row], dict[str, int]] | None = None
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pipeline.produce(0, 6)
        self.pipeline.run("first")

    def run(self) -> None:
        """Records arrive and a run lands them."""
        self.pipeline.produce(0, 2)
        self.pipeline.run(f"run-{len(self.done)}")

    def replace(self) -> None:
        """Some offsets are landed again."""
        self._plan_again(land=True)

    def plan_again(self) -> None:
        """And nobody lands the plan."""
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
        """Some plan is taken out."""
        plans = [n for n, record in self.pipeline.ledger.plans.items() if record.held_now]
        if plans:
            self.pipeline.undo.undo(self.chance.choice(plans), "ops", "a test")

    def abandon(self) -> None:
        """What is open is given up."""
        for record in self.pipeline.ledger.open_plans():
            self.pipeline.abandon.abandon(record.plan.sequence, "ops", "a test")

    def restore(self) -> None:
        """The data table is restored to some version."""
        self.pipeline.table.restore(self.chance.randrange(1, len(self.pipeline.table.commits) + 1))
        self._rebuild()

    def lose_control(self) -> None:
        """The control table is gone."""
        self.pipeline.control.rows, self.pipeline.control.newest = [], {}
        self._rebuild()

    def keep_control(self) -> None:
        """Somebody makes a backup."""
        control = self.pipeline.control
        self.backup = (list(control.rows), dict(control.newest))

    def bring_control_back(self) -> None:
        """It takes the table's place."""
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
        """Something happens; what may be refused now is refused."""
        name = self.chance.choice(names)
        self.done.append(name)
        operation: Callable[[], None] = getattr(self, name)
        try:
            operation()
        except BackfillOpen:
            self.done.append("refused")

    def check(self) -> None:
        """The ledger, whole and as a summary, holds what the table holds."""
        ledger, summary = self.pipeline.ledger, self.pipeline.control.summary("events")
        assert (summary.landed, summary.pending) == (ledger.landed, ledger.pending), self.done
        assert summary.records == ledger.records, self.done
        told = {
            (record.plan.topic_id, partition, offset, number)
            for number, record in ledger.plans.items()
            if record.held_now
            for partition, spans in record.held_now.spans().items()
            for span in spans
            for offset in range(span.start, span.end)
        }
        rows: list[MemoryRow] = self.pipeline.table.rows
        assert (len(rows), set(rows)) == (len(told), told), self.done

    def come_to_rest(self) -> None:
        """All of the log is in the table, once."""
        for record in self.pipeline.ledger.open_plans():
            try:
                self.pipeline.ingest.execute(record.plan.sequence)
            except PlanFenced:
                # The control table has forgotten that it was given up.
                self.abandon()
        self.pipeline.run("last")
        self.check()
        visible = self.pipeline.visible_identities()
        assert self.pipeline.landed_identities() == visible, self.done


DAILY = ("run", "replace", "replace", "plan_again", "undo", "abandon")
"""What an operator does day by day."""


@pytest.mark.parametrize(
    "trouble",
    [(), ("restore",), ("lose_control",), ("keep_control", "bring_control_back")],
    ids=["none", "RESTORE", "lost control table", "control table from a backup"],
)
@pytest.mark.parametrize(
    "histories", [60, pytest.param(2_000, marks=pytest.mark.faults)], ids=["few", "many"]
)
def test_the_ledger_is_the_table(trouble: tuple[str, ...], histories: int) -> None:
    """Whatever was replaced, taken out, restored and repaired in between."""
    for seed in range(histories):
        check_history(seed, trouble)


@pytest.mark.parametrize(
    ("seed", "trouble"), [(70, ("restore",)), (543, ("keep_control", "bring_control_back"))]
)
def test_a_plan_that_is_gone_for_two_reasons_is_rewound_once(
    seed: int, trouble: tuple[str, ...]
) -> None:
    """It found gaps only and lost its rows: two equal events would be taken for doubled ones."""
    check_history(seed, trouble)


def check_history(seed: int, trouble: tuple[str, ...]) -> None:
    """Nine random operations, each followed by a comparison of the ledger and the table."""
    operations = Operations(Random(seed))
    try:
        for _ in range(9):
            operations.one((*DAILY, *trouble))
            operations.check()
        operations.come_to_rest()
    except TidemarkError as error:
        raise AssertionError(f"seed {seed}: {operations.done}") from error

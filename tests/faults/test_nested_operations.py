"""Each operation on a typed table runs at every point between two changes of each other one.

Afterwards the commands that the errors name repair the tables. Then each landed record is decoded
once or quarantined once, and the status counts the quarantined records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.nesting import kill, nested
from tests.support.typed_lake import FileDecoder, TypedLake
from tidemark.core.errors import HistoriesDiverge, PlanCannotLand, TidemarkError
from tidemark.core.offsets import Span, SpanSet
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.data_table import DeltaDataTable
from tidemark.silver.typed.errors import QuarantineRestored
from tidemark.silver.typed.quarantine import DeltaQuarantine

pytestmark = pytest.mark.faults

_CHANGES: Mapping[type, tuple[str, ...]] = {
    DeltaDataTable: ("land", "fence", "fence_chains", "remove_rows"),
    DeltaQuarantine: ("append", "withdraw", "erase_closed", "check_same"),
    DeltaControlTable: ("append",),
    FileDecoder: ("write",),
}
"""The methods before and after which the second operation runs."""

_MOST_REPAIRS = 12


class NestedLake(TypedLake):
    """A typed lake with two decoded plans and a landed plan that is not decoded."""

    versions: tuple[int, int]
    """Versions of the typed table after plan 1 and after plan 2."""

    @classmethod
    def create(cls, root: Path) -> NestedLake:
        """Return it in an empty folder."""
        lake = cls(root=root)
        lake.land_and_run(4, 1)
        first = DeltaTable(lake.typed_uri).version()
        lake.land_and_run(4, 1, 5)
        lake.versions = (first, DeltaTable(lake.typed_uri).version())
        lake.bronze.run(3)
        lake.broken = {1, 5, 9}
        return lake

    def replay_one(self) -> None:
        """Replay the record of plan 1, which can be decoded now."""
        self.broken = set(self.broken) - {1}
        plan = self.decoding.replay("id-1", {0: SpanSet.of([Span(1, 2)])}).plan
        if plan is not None:
            self.ingest.execute(plan.sequence)

    def abandon_open(self) -> None:
        """Abandon the open typed plans."""
        for record in self.control.summary(self.spec.name).open_plans():
            self.abandon.abandon(record.plan.sequence, "test", "not wanted")

    def restore(self, plan: int, *, rewinds: bool = False) -> None:
        """Restore the typed table to its state after a plan, if it has changed since then."""
        table = DeltaTable(self.typed_uri)
        # delta-rs refuses a RESTORE to the newest version.
        if table.version() > self.versions[plan - 1]:
            table.restore(self.versions[plan - 1])
        if rewinds:
            self.repair.rewind("test", "a mistake")

    def recover(self) -> None:
        """Do what errors name, until a run decodes all records."""
        requests = map("recovery {}".format, range(_MOST_REPAIRS * 10))
        for _ in range(_MOST_REPAIRS):
            try:
                for record in self.bronze.control.ledger("events").plans.values():
                    if record.undoing:
                        self.bronze.undo.undo(record.plan.sequence, "test", "again")
                while (plan := self.bronze.planner.plan(next(requests)).plan) is not None:
                    self.bronze.ingest.execute(plan.sequence)
                self.run()
            except HistoriesDiverge:
                self._repair()
            except QuarantineRestored as error:
                DeltaTable(self.quarantine_uri).restore(error.complete_version)
            except PlanCannotLand as error:
                self.abandon.abandon(error.sequence, "test", "as the error advises")
            except TidemarkError:
                continue
            else:
                return
        pytest.fail("the named commands do not end")

    def _repair(self) -> None:
        for repair in (self.repair.rewind, self.repair.rebuild):
            try:
                repair("test", "as the error advises")
            except TidemarkError:
                continue
            return

    def check_records(self, where: str) -> None:
        """Check that each record is in one table, and that the quarantine's count is right."""
        self.check_rows(where)
        # Rows that a killed repair leaves in the quarantine count as open until it is repeated.
        self._repair()
        self.check_rows(where)
        assert self.quarantine.count_open() == len(self.quarantined()), where


_FIRST: Mapping[str, Callable[[NestedLake], object]] = {
    "decode": lambda lake: lake.run(),
    "replay": lambda lake: lake.replay_one(),
    "undo of plan 1": lambda lake: lake.undo.undo(1, "test", "wrong"),
    "undo of plan 2": lambda lake: lake.undo.undo(2, "test", "wrong"),
    "RESTORE to plan 1 and rewind": lambda lake: lake.restore(1, rewinds=True),
    "rebuild": lambda lake: lake.repair.rebuild("test", "as a backup"),
}
_SECOND: Mapping[str, Callable[[NestedLake], object]] = {
    **_FIRST,
    "abandon": lambda lake: lake.abandon_open(),
    "undo of bronze plan 2": lambda lake: lake.bronze.undo.undo(2, "test", "wrong"),
    "replacement of bronze rows": lambda lake: lake.bronze.land_again((0, 0, 2)),
    "RESTORE to plan 1": lambda lake: lake.restore(1),
    "RESTORE to plan 2": lambda lake: lake.restore(2),
    "RESTORE to plan 2 and rewind": lambda lake: lake.restore(2, rewinds=True),
    "kill": kill,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> NestedLake:
    """The lake that each point starts from."""
    return NestedLake.create(tmp_path_factory.mktemp("nested") / "lake")


@pytest.mark.parametrize("second", _SECOND)
@pytest.mark.parametrize("first", _FIRST)
def test_i1_each_record_is_in_one_table_after_two_nested_operations(
    template: NestedLake, tmp_path: Path, first: str, second: str
) -> None:
    """The second operation may fail, and may be a kill of the first."""
    for lake, where in nested(template, tmp_path, _CHANGES, _FIRST[first], _SECOND[second]):
        lake.recover()
        lake.check_records(where)

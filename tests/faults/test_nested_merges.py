"""Other operations run at every point between two steps of a merge into an upsert table.

After the next merges, the upsert table has the newest typed row of each key.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.file_merger import FileMerger
from tests.support.nesting import kill, nested
from tests.support.upsert_lake import UpsertLake
from tidemark.core.errors import TidemarkError
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.noted_commits import NotedTable, NotedVersion
from tidemark.silver.typed.tables import TypedTables
from tidemark.silver.upsert.table import DeltaUpsertTable
from tidemark.spec.upsert import Deletes, MergePlan

pytestmark = pytest.mark.faults

_MOST_MERGES = 5


_STEPS: Mapping[type, tuple[str, ...]] = {
    NotedTable: ("open",),
    NotedVersion: ("notes_since", "newest_note", "row_count", "topic_ids"),
    TypedTables: ("columns",),
    DeltaUpsertTable: ("version", "last_merge", "fits", "prepare"),
    DeltaControlTable: ("summary", "rows_since", "rows_of_plans"),
    FileMerger: ("merge", "_merge_in_transaction", "_commit"),
}
"""The methods before which the other operation runs."""


class NestedLake(UpsertLake):
    """An upsert table with two merged plans; plan 3 is decoded, and plan 4 has landed."""

    typed_version: int
    """Version of the typed table after plan 2."""

    @classmethod
    def create(cls, root: Path) -> NestedLake:
        """Return it in an empty folder."""
        lake = cls(root=root, deletes=Deletes.HARD)
        lake.land_records(("a", "1"), ("b", "1"), ("c", "1"))
        lake.merge()
        lake.land_records(("a", "2"), ("b", None), ("d", "1"))
        lake.merge()
        lake.typed_version = DeltaTable(lake.typed_uri).version()
        lake.land_records(("a", "3"), ("d", None), ("e", "1"))
        lake.run()
        lake.land_records(("a", "4"), ("c", "2"))
        return lake

    def merge_decoded(self) -> MergePlan | None:
        """Merge the rows that are decoded."""
        return self.upserts.execute(self.merger)

    def undo_and_decode(self, plan: int) -> None:
        """Undo a bronze plan, and decode."""
        self.bronze.undo.undo(plan, "test", "wrong")
        self.run()

    def restore_typed(self) -> None:
        """Restore the typed table to its state after plan 2."""
        DeltaTable(self.typed_uri).restore(self.typed_version)

    def lose_upsert_table(self) -> None:
        """Remove the upsert table."""
        shutil.rmtree(self.upsert_uri, ignore_errors=True)

    def restore_upsert_table(self) -> None:
        """Restore the upsert table to its state after plan 1, if it has changed since then."""
        if self.upserts.table.version() > 1:
            DeltaTable(self.upsert_uri).restore(1)

    def recover(self) -> None:
        """Merge until the upsert table is up to date."""
        self.bronze.run(1)
        self.run()
        for _ in range(_MOST_MERGES):
            try:
                if self.merge_decoded() is None:
                    return
            except TidemarkError:
                continue
        pytest.fail("the merges do not end")


def _undo_later(lake: NestedLake) -> None:
    lake.merge()
    lake.undo_and_decode(3)
    lake.merge_decoded()


def _replace(lake: NestedLake) -> None:
    lake.bronze.land_again((0, 1, 5))
    lake.merge()


def _undo(plan: int, *, merges: bool) -> Callable[[NestedLake], None]:
    def undo(lake: NestedLake) -> None:
        lake.undo_and_decode(plan)
        if merges:
            lake.merge_decoded()

    return undo


def _lose(lake: NestedLake) -> None:
    lake.lose_upsert_table()
    lake.merge()


def _restore(lake: NestedLake) -> None:
    lake.restore_typed()
    lake.merge()


def _clear(lake: NestedLake) -> None:
    lake.part.clear("test", "again")
    lake.merge()


_BEFORE: Mapping[str, Callable[[NestedLake], object]] = {
    "new rows": lambda _: None,
    "undone rows": lambda lake: lake.undo_and_decode(2),
    "a lost table": lambda lake: lake.lose_upsert_table(),
}
_OTHERS: Mapping[str, Callable[[NestedLake], object]] = {
    "the same merge": lambda lake: lake.merge_decoded(),
    "a merge of more rows": lambda lake: lake.merge(),
    "an undo of plan 1": _undo(1, merges=False),
    "an undo of plan 1 and a merge": _undo(1, merges=True),
    "an undo of plan 3": _undo(3, merges=False),
    "an undo of plan 3 and a merge": _undo(3, merges=True),
    "a merge, an undo of plan 3 and a merge": _undo_later,
    "a replacement and a merge": _replace,
    "a RESTORE of the typed table and a merge": _restore,
    "a decode from scratch and a merge": _clear,
    "a RESTORE of the upsert table": lambda lake: lake.restore_upsert_table(),
    "a loss of the upsert table and a merge": _lose,
    "a kill": kill,
}


@pytest.fixture(scope="module", params=_BEFORE)
def template(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> NestedLake:
    """The lake that each point starts from."""
    lake = NestedLake.create(tmp_path_factory.mktemp("nested") / "lake")
    _BEFORE[request.param](lake)
    return lake


@pytest.mark.parametrize("other", _OTHERS)
def test_each_key_has_its_newest_row_after_an_operation_during_a_merge(
    template: NestedLake, tmp_path: Path, other: str
) -> None:
    """Each may fail."""
    for lake, where in nested(
        template, tmp_path, _STEPS, NestedLake.merge_decoded, _OTHERS[other], after=False
    ):
        lake.recover()
        assert lake.upsert_rows() == lake.expected_rows(("id-1",)), where

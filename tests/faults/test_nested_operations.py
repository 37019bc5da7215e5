"""Other operations run at every point between two steps of a decode.

Afterwards, the next decode corrects both tables: each landed record is decoded once or quarantined
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.nesting import kill, nested
from tests.support.typed_lake import FileDecoder, TypedLake
from tidemark.core.offsets import Span
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.noted_commits import NotedVersion

pytestmark = pytest.mark.faults

_STEPS: Mapping[type, tuple[str, ...]] = {
    DeltaControlTable: ("summary", "rows_since"),
    FileDecoder: ("decode",),
    NotedVersion: ("commit", "clear"),
}
"""The methods before which the second operation runs."""


class NestedLake(TypedLake):
    """A typed lake with two decoded plans and a landed plan that is not decoded."""

    @classmethod
    def create(cls, root: Path) -> NestedLake:
        """Return it in an empty folder."""
        lake = cls(root=root)
        lake.land_and_run(4, 1)
        lake.land_and_run(4, 1, 5)
        lake.bronze.run(3)
        lake.broken = {1, 5, 9}
        return lake

    def replay_one(self) -> None:
        """Replay the record of plan 1, which can be decoded now."""
        self.broken = set(self.broken) - {1}
        self.replay(Span(1, 2))

    def restore(self, uri: Path, version: int) -> None:
        """Restore a table to a version, if it has changed since then."""
        table = DeltaTable(uri)
        # delta-rs refuses a RESTORE to the newest version.
        if table.version() > version:
            table.restore(version)


_FIRST: Mapping[str, Callable[[NestedLake], object]] = {
    "decode": lambda lake: lake.run(),
    "replay": lambda lake: lake.replay_one(),
    "decode from scratch": lambda lake: lake.decodes.from_scratch("test", "new rules"),
}
_SECOND: Mapping[str, Callable[[NestedLake], object]] = {
    **_FIRST,
    "undo of plan 2": lambda lake: lake.bronze.undo.undo(2, "test", "wrong"),
    "undo of plan 2 and decode": lambda lake: (
        lake.bronze.undo.undo(2, "test", "wrong"),
        lake.run(),
    ),
    "replacement of bronze rows": lambda lake: lake.bronze.land_again((0, 0, 2)),
    "RESTORE of the typed table": lambda lake: lake.restore(lake.typed_uri, 1),
    "RESTORE of the quarantine": lambda lake: lake.restore(lake.quarantine_uri, 1),
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
    for lake, where in nested(
        template, tmp_path, _STEPS, _FIRST[first], _SECOND[second], after=False
    ):
        lake.bronze.run(1)
        lake.run()
        lake.check_rows(where)
        lake.check()

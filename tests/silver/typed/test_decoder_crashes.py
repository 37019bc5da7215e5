"""Tests that kill a decoder after each of its changes, and let the next run continue.

A kill before a change leaves the same tables as a kill after the previous change. All runs share
one process: a kill is an exception, and the test compares the tables afterwards.

The tests count the changes of all ports, of both tables, of new columns and of stored schemas.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from tests.support.registered_lake import RegisteredLake
from tests.support.typed_lake import TypedLake
from tidemark.bronze.ingest.protocols import ControlTable, Sink
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.offsets import Span
from tidemark.delta.data_table import DeltaDataTable
from tidemark.silver.typed.quarantine import DeltaQuarantine, TypedTablePair
from tidemark.silver.typed.schema_table import DeltaSchemaStore
from tidemark.silver.typed.schemas import SchemaResolver
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType

pytestmark = pytest.mark.e2e

_Port = TypeVar("_Port")
_CHANGES = {
    change.__name__
    for change in (
        *(ControlTable.append, Sink.write, DeltaSchemaStore.store),
        *(DeltaDataTable.append, DeltaDataTable.land, DeltaDataTable.prepare, DeltaDataTable.fence),
        *(DeltaQuarantine.append, DeltaQuarantine.withdraw, DeltaQuarantine.erase_closed),
    )
}
"""Names of the methods that change a table or files."""


class Killed(BaseException):
    """The kill; no code catches it, as no code catches SIGKILL."""


@dataclass
class KillAfter:
    """Counts changes down, and raises `Killed` after the last one."""

    left: int

    def on(self, port: _Port) -> _Port:
        """The port with counted changes."""
        return cast(_Port, _CountedPort(port, self))

    def call(self, change: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Make a change, and raise `Killed` afterwards if the count is zero."""
        self.left -= 1
        is_last = self.left == 0
        result = change(*arguments, **named)
        if is_last:
            raise Killed
        return result


class _CountedPort:
    def __init__(self, port: object, kill: KillAfter) -> None:
        self._port = port
        self._kill = kill

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        if name not in _CHANGES:
            return value
        return lambda *arguments, **named: self._kill.call(value, *arguments, **named)


class KillableLake(TypedLake):
    """A lake whose driver is killed after some changes."""

    kill: KillAfter

    @property
    def control(self) -> Any:
        """The control table."""
        return self.kill.on(super().control)

    @property
    def table(self) -> TypedTablePair:
        """Both tables; a change of either may be the last one."""
        return TypedTablePair(self.kill.on(self.typed), self.kill.on(self.quarantine), self.grown)

    def grown(self, columns: Mapping[Part, FieldType]) -> Any:
        """The typed table with more columns, which `prepare` adds."""
        return self.kill.on(super().grown(columns))

    @property
    def schemas(self) -> SchemaResolver:
        """Resolves schemas; storing them may be the last change."""
        schemas = super().schemas
        return replace(schemas, store=self.kill.on(schemas.store))

    @property
    def sink(self) -> Any:
        """The decoder."""
        return self.kill.on(super().sink)


def lake_with_all_work(root: Path) -> TypedLake:
    """Return a lake with rows to decode, to decode again and to remove, and a quarantine."""
    lake = TypedLake(root=root, broken={1, 5})
    lake.bronze.run(4)
    lake.run()
    lake.bronze.run(3)
    lake.bronze.run(2, partition=1)
    lake.run()
    lake.bronze.land_again((0, 0, 3))
    lake.bronze.undo.undo(3, "test", "a mistake")
    lake.bronze.run(2)
    return lake


def count_kills(
    first: TypedLake,
    broken: set[int],
    act: Callable[[TypedLake], object],
    recover: Callable[[TypedLake], object] = lambda _: None,
) -> int:
    """Kill an action after each of its changes, each on a copy of a lake; check each copy.

    Args:
        first: The lake to copy.
        broken: Offsets of the records that fail to decode in the copies.
        act: The action. It ends normally if it makes fewer changes than the count.
        recover: An operator's action before the next run.

    Returns:
        The number of kills.
    """
    for number in range(1, 1_000):
        root = first.root.parent / str(number)
        shutil.copytree(first.root, root)
        lake = KillableLake(root=root, broken=broken, decode=first.decode, registry=first.registry)
        lake.bronze = replace(first.bronze, root=root)
        lake.kill = KillAfter(number)
        survived = False
        with suppress(Killed):
            act(lake)
            survived = True
        next_one = replace(first, root=root, broken=broken)
        next_one.bronze = lake.bronze
        recover(next_one)
        next_one.run()
        next_one.check()
        assert next_one.run() == []
        shutil.rmtree(root)
        if survived:
            break
    print(f"killed after each of {number - 1} changes")
    return number - 1


@pytest.mark.faults
def test_a_decoder_killed_at_any_step_loses_and_duplicates_no_record(tmp_path: Path) -> None:
    """Each record is in exactly one of the two tables."""
    first = lake_with_all_work(tmp_path / "prepared")
    assert count_kills(first, {2, 5}, lambda lake: lake.run()) >= 10


def replay(lake: TypedLake) -> None:
    """Decode the first five records again."""
    lake.replay(Span(0, 5))


def abandon(lake: TypedLake) -> None:
    """Abandon the replay, unless it has landed."""
    if lake.control.summary("events@typed").open_plans():
        with suppress(NothingToDo):
            lake.abandon.abandon(2, "test", "a mistake")


@pytest.mark.parametrize(
    "recover",
    [
        pytest.param(lambda _: None, id="run again"),
        pytest.param(abandon, id="abandoned", marks=pytest.mark.faults),
    ],
)
def test_a_replay_killed_at_any_step_loses_and_duplicates_no_record(
    tmp_path: Path, recover: Callable[[TypedLake], object]
) -> None:
    """If the replay is abandoned, the records that it closed are open again."""
    first = TypedLake(root=tmp_path / "prepared", broken={1, 3})
    first.bronze.run(5)
    first.run()
    assert count_kills(first, {3}, replay, recover) >= 5


@pytest.mark.faults
@pytest.mark.parametrize("landed", [0, 1])
def test_a_planner_killed_while_it_adds_columns_loses_no_field(tmp_path: Path, landed: int) -> None:
    """Covers each step between storing schemas and planning, for a new and an old table."""
    first = RegisteredLake(root=tmp_path / "prepared")
    for _ in range(landed):
        first.land_objects(1, {"id": 1}, {"id": 2})
        first.run()
    first.land_objects(2, {"id": 3, "price": 0.5}, {"id": 4, "price": 1.5})
    first.land_objects(3, {"id": 5, "note": "n"})
    assert count_kills(first, {landed * 2}, lambda lake: lake.decoding.plan()) >= 3

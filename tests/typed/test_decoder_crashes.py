"""A decoder dies after each of its changes, and the next run continues.

Death before a change leaves what death after the change before it leaves. In one process: what
dies is a call, and what counts afterwards is what the tables have. Steps are
counted over the ports and over both tables that one of them is made of; that the typed table grows
is one of them, and so is that schemas are kept.
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
from tidemark.core.offsets import Span
from tidemark.repair.errors import PlanLanded
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType
from tidemark.typed.quarantine import TypedTablePair
from tidemark.typed.schemas import SchemaResolver

pytestmark = pytest.mark.e2e

_Port = TypeVar("_Port")
_CHANGES = {
    *("append", "land", "prepare", "fence", "withdraw", "discard", "write", "erase_closed", "keep"),
}


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@dataclass
class Death:
    """Counts changes down, and dies after the last one."""

    left: int

    def on(self, port: _Port) -> _Port:
        """The port with counted changes."""
        return cast(_Port, _Mortal(port, self))

    def call(self, change: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Make a change, and die afterwards if the count is zero."""
        self.left -= 1
        is_last = self.left == 0
        result = change(*arguments, **named)
        if is_last:
            raise Killed
        return result


class _Mortal:
    def __init__(self, port: object, death: Death) -> None:
        self._port = port
        self._death = death

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        if name not in _CHANGES:
            return value
        return lambda *arguments, **named: self._death.call(value, *arguments, **named)


class MortalLake(TypedLake):
    """A lake whose driver dies."""

    death: Death

    @property
    def control(self) -> Any:
        """The control table."""
        return self.death.on(super().control)

    @property
    def table(self) -> TypedTablePair:
        """Both tables; a change of either may be the last one."""
        return TypedTablePair(self.death.on(self.typed), self.death.on(self.quarantine), self.grown)

    def grown(self, columns: Mapping[Part, FieldType]) -> Any:
        """The typed table with more columns, which `prepare` adds."""
        return self.death.on(super().grown(columns))

    @property
    def schemas(self) -> SchemaResolver:
        """Resolves schemas; storing them may be the last change."""
        schemas = super().schemas
        return replace(schemas, store=self.death.on(schemas.store))

    @property
    def sink(self) -> Any:
        """The decoder."""
        return self.death.on(super().sink)


def prepared(root: Path) -> TypedLake:
    """Something to decode, to decode again, and to take out; records are in quarantine."""
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


def killed_everywhere(
    first: TypedLake,
    broken: set[int],
    act: Callable[[TypedLake], object],
    recover: Callable[[TypedLake], object] = lambda _: None,
) -> int:
    """Act on copies of a lake and die, once after each change; check the remaining state.

    Args:
        first: The lake to copy.
        broken: Offsets of the records that fail to decode in the copies.
        act: The action that dies. It survives once it makes fewer changes than the count.
        recover: An operator's action before the next run.

    Returns:
        The number of deaths.
    """
    for number in range(1, 1_000):
        root = first.root.parent / str(number)
        shutil.copytree(first.root, root)
        lake = MortalLake(root=root, broken=broken, decode=first.decode, registry=first.registry)
        lake.bronze = replace(first.bronze, root=root)
        lake.death = Death(number)
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


def test_a_decoder_killed_at_any_step_loses_and_duplicates_no_record(tmp_path: Path) -> None:
    """Each record is in exactly one of the two tables."""
    first = prepared(tmp_path / "prepared")
    assert killed_everywhere(first, {2, 5}, lambda lake: lake.run()) >= 10


def replay(lake: TypedLake) -> None:
    """Decode the first five records again."""
    lake.replay(Span(0, 5))


def abandon(lake: TypedLake) -> None:
    """Abandon the replay, unless it has landed."""
    if lake.control.summary("events@typed").open_plans():
        with suppress(PlanLanded):
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
    assert killed_everywhere(first, {3}, replay, recover) >= 5


@pytest.mark.faults
@pytest.mark.parametrize("landed", [0, 1])
def test_a_planner_killed_while_it_adds_columns_loses_no_field(tmp_path: Path, landed: int) -> None:
    """Between storing schemas, adding columns and planning; with and without a column before."""
    first = RegisteredLake(root=tmp_path / "prepared")
    for _ in range(landed):
        first.land_objects(1, {"id": 1}, {"id": 2})
        first.run()
    first.land_objects(2, {"id": 3, "price": 0.5}, {"id": 4, "price": 1.5})
    first.land_objects(3, {"id": 5, "note": "n"})
    assert killed_everywhere(first, {landed * 2}, lambda lake: lake.decoding.plan()) >= 3

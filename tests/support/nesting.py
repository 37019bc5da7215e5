"""Runs an operation at each point between two steps of another one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.typed_lake import TypedLake
from tidemark.core.errors import TidemarkError

_Lake = TypeVar("_Lake", bound=TypedLake)


class Killed(BaseException):
    """The kill of the first operation."""


def kill(_: object) -> None:
    """Kill the first operation."""
    raise Killed


def nested(
    template: _Lake,
    folder: Path,
    steps: Mapping[type, tuple[str, ...]],
    first: Callable[[_Lake], object],
    second: Callable[[_Lake], object],
    *,
    after: bool = True,
) -> Iterator[tuple[_Lake, str]]:
    """Run the first operation on copies of a lake, and in each the second one at the next point.

    Either may fail.

    Args:
        template: The lake.
        folder: Folder for the copies.
        steps: Methods; there is a point before each call, and one after it.
        first: The first operation.
        second: The second operation, which may be a kill of the first.
        after: Whether there are points after calls. They differ from the points before the next
            calls only if `steps` is not complete.

    Yields:
        Each lake after both operations, and the name of the point.
    """
    for number in count(1):
        lake = template.copied(folder / str(number))
        point = _Point(number, after, lambda lake=lake: second(lake))  # type: ignore[misc]
        with point.between(steps), suppress(Killed, TidemarkError):
            first(lake)
        if not point.where:
            return
        yield lake, f"point {number}, {point.where}"
        shutil.rmtree(lake.root)


@dataclass
class _Point:
    """Runs an operation at one of the points.

    Attributes:
        number: The point, counted from 1.
        after: Whether there are points after calls.
        operation: Runs there.
        where: Name of the point; empty until it is reached.
    """

    number: int
    after: bool
    operation: Callable[[], object]
    where: str = ""
    _passed: int = field(default=0, init=False)

    @contextmanager
    def between(self, steps: Mapping[type, tuple[str, ...]]) -> Iterator[None]:
        """Count the points of the steps, and run the operation at its point."""
        with pytest.MonkeyPatch.context() as patched:
            for owner, names in steps.items():
                for name in names:
                    patched.setattr(owner, name, self._hooked(owner, name))
            yield

    def _hooked(self, owner: type, name: str) -> Callable[..., Any]:
        method = getattr(owner, name)

        def call(instance: object, *arguments: Any, **named: Any) -> Any:
            if self.where:
                return method(instance, *arguments, **named)
            self._pass(f"before {owner.__name__}.{name}")
            result = method(instance, *arguments, **named)
            if self.after:
                self._pass(f"after {owner.__name__}.{name}")
            return result

        return call

    def _pass(self, where: str) -> None:
        self._passed += 1
        if self._passed == self.number:
            self.where = where
            with suppress(TidemarkError):
                self.operation()

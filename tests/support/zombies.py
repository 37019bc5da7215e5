"""Holds drivers and planners at a step while tests change tables and logs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.lake import Lake
from tests.support.services import with_ports
from tests.support.waiting import wait_until
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.core.datafile import DataFile
from tidemark.core.plan import Plan
from tidemark.core.table_state import TableState
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import EngineFailed

HOLD_TIMEOUT_S = 90.0
"""Time limit of a held step, in seconds."""


class Killed(BaseException):
    """The kill of a process."""


def kill() -> None:
    """Kill the process."""
    raise Killed


class HeldTable(DeltaDataTable):
    """Holds a landing inside its Delta transaction, before the commit.

    Attributes:
        failure: The exception of `append`; None if it raised none.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.failure: Exception | None = None
        self._reached = threading.Event()
        self._let_go = threading.Event()

    @property
    def is_held(self) -> bool:
        """Whether a transaction waits."""
        return self._reached.is_set()

    def let_go(self) -> None:
        """Let the transaction commit."""
        self._let_go.set()

    def append(self, plan: Plan, files: Sequence[DataFile], seen: TableState) -> bool:
        """Append, and keep the exception."""
        try:
            return super().append(plan, files, seen)
        except Exception as failure:
            self.failure = failure
            raise

    def _add_files(self, *arguments: Any, **named: Any) -> None:
        self._reached.set()
        assert self._let_go.wait(HOLD_TIMEOUT_S), "the test did not let the landing go"
        super()._add_files(*arguments, **named)


@dataclass(frozen=True)
class Zombie:
    """A driver in a thread, held inside its transaction.

    Attributes:
        table: The table that holds it.
        running: Its result.
    """

    table: HeldTable
    running: Future[ExecutionResult]

    def wake(self) -> Exception | ExecutionResult:
        """Let the driver commit, and return its result or its exception."""
        self.table.let_go()
        failure = self.running.exception(HOLD_TIMEOUT_S)
        if isinstance(failure, Exception):
            return failure
        return self.running.result()


@contextmanager
def zombie(lake: Lake, plan: Plan) -> Iterator[Zombie]:
    """Run a driver of a plan, and hold it during the block or until it is woken."""
    table = HeldTable(str(lake.uri))
    with ThreadPoolExecutor(1) as pool:
        held = Zombie(
            table, pool.submit(with_ports(lake.ingest, table=table).execute, plan.sequence)
        )
        try:
            wait_until(lambda: table.is_held or held.running.done(), HOLD_TIMEOUT_S)
            assert table.is_held, held.running.exception()
            yield held
        finally:
            table.let_go()


class LostAnswer(DeltaDataTable):
    """A data table that loses the answer to each commit of a plan."""

    def append(self, plan: Plan, files: Sequence[DataFile], seen: TableState) -> bool:
        """Commit, and raise the error of a lost answer."""
        super().append(plan, files, seen)
        raise EngineFailed(operation=f"landing plan {plan.sequence}", reason="the answer was lost")


class PortWithStep:
    """A port that runs a step before or after the first call of one of its methods."""

    def __init__(
        self,
        port: object,
        method: str,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self._port = port
        self._method = method
        self._before = before
        self._after = after
        self._first = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        return self._around(value) if name == self._method else value

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **named: Any) -> Any:
            first = self._first.acquire(blocking=False)
            if first:
                self._before()
            result = call(*arguments, **named)
            if first:
                self._after()
            return result

        return around

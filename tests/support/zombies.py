"""Drivers and planners that are held at the worst moment, and let go when the world has changed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tests.support.crashes import wait_until
from tests.support.lake import Lake
from tests.support.services import NOW
from tidemark.adapters.kafka.options import client_config, spark_options
from tidemark.adapters.spark.sink import SparkDeltaSink
from tidemark.core.plan import Plan
from tidemark.errors import EngineFailed
from tidemark.ports import Sink
from tidemark.services.ingest import Ingestion

PATIENCE_S = 90.0
"""How long anybody is held before the test gives up."""


class HeldSink(SparkDeltaSink):
    """Holds a landing inside its Delta transaction: after it began, before it commits.

    Delta has looked whether the transaction is there by the time its write job runs, and commits
    when the job has ended; the job waits in the middle of its rows until somebody lets it go.

    Attributes:
        failure: What `land` raised; None if it did not.
    """

    def __init__(self, lake: Lake, folder: Path) -> None:
        folder.mkdir()
        super().__init__(
            session=lake.session,
            uri=lake.uri,
            kafka_options=spark_options(client_config("lake", lake.connection)),
            records_per_task=lake.spec.records_per_task,
            now=lambda: NOW,
        )
        # Not whichever python3 is first on the PATH: the workers need what this one has.
        lake.session.sparkContext.pythonExec = sys.executable
        self.failure: Exception | None = None
        self._reached = folder / "reached"
        self._let_go = folder / "let-go"

    @property
    def held(self) -> bool:
        """Whether the transaction has begun and waits."""
        return self._reached.exists()

    def let_go(self) -> None:
        """Let it commit."""
        self._let_go.touch()

    def land(self, plan: Plan) -> None:
        """As the real one, but for the wait."""
        try:
            super().land(plan)
        except Exception as failure:
            self.failure = failure
            raise

    def _with_provenance(self, records: DataFrame, plan: Plan) -> DataFrame:
        rows = super()._with_provenance(records, plan)
        reached, let_go, patience_s = str(self._reached), str(self._let_go), PATIENCE_S

        def hold(batches: Iterator[Any]) -> Iterator[Any]:
            """Runs in Spark's Python workers, which know nothing of this module."""
            import time
            from pathlib import Path

            Path(reached).touch()
            deadline = time.monotonic() + patience_s
            while not Path(let_go).exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("nobody let the landing go")
                time.sleep(0.02)
            yield from batches

        # One task of each driver waits, so that two of them fit into the session's two threads.
        return rows.coalesce(1).mapInArrow(hold, rows.schema)


@dataclass(frozen=True)
class Zombie:
    """A driver in a thread, which is held inside its transaction.

    Attributes:
        sink: What holds it.
        running: What becomes of it.
    """

    sink: HeldSink
    running: Future[Ingestion]

    def wake(self) -> Exception | Ingestion:
        """Let it go, and return what it came to."""
        self.sink.let_go()
        failure = self.running.exception(PATIENCE_S)
        if isinstance(failure, Exception):
            return failure
        return self.running.result()


@contextmanager
def zombie(lake: Lake, plan: Plan, folder: Path) -> Iterator[Zombie]:
    """A driver of a plan that is held during the block, until it is woken."""
    sink = HeldSink(lake, folder)
    with ThreadPoolExecutor(1) as pool:
        held = Zombie(sink, pool.submit(replace(lake.ingest, sink=sink).execute, plan.sequence))
        try:
            wait_until(lambda: sink.held or held.running.done(), PATIENCE_S)
            assert sink.held, held.running.exception()
            yield held
        finally:
            sink.let_go()


@dataclass
class LostAnswer:
    """A sink whose answer is lost after the commit."""

    sink: Sink

    def land(self, plan: Plan) -> None:
        """Land it, and fail as Spark does when its driver does not hear of the commit."""
        self.sink.land(plan)
        raise EngineFailed(operation=f"landing plan {plan.sequence}", reason="the answer was lost")


class Interposed:
    """A port with something done before, or after, the first call of one of its methods."""

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

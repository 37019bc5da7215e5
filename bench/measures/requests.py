"""Requests to an object store by each step, and their time with and without a delay of 30 ms.

The counts do not depend on the machine. Kafka is in memory. The requests that replace Spark's are
neither counted nor delayed: see `tests/support/store_home.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.request_steps import (
    PLACES,
    RECORDS,
    StepCost,
    counted_home,
    measure_run,
    measure_steps,
)
from tests.support.store_home import COMMITS, PARTITIONS

from bench.context import Context
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side

TARGETS: Mapping[str, int] = {
    "plan_of_nothing": 12,
    "idle_run": 15,
    "status": 15,
    "plan": 20,
    "ingest": 60,
    "check": 60,
    "run": 250,
}
"""Target for the requests of each step on a machine with copies of the logs.
`tests/test_requests.py` enforces the present limits."""


class _Stores:
    """The sides of the benchmark. Each repetition of a side has a store of its own.

    Attributes:
        kinds: The requests of the last repetition by step, table and kind.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._used = 0
        self.kinds: dict[str, dict[str, dict[str, int]]] = {}

    def on_store(self, delay_s: float) -> Metrics:
        """Measure the steps with the tables on the store."""
        self._used += 1
        with counted_home(self._context.home / f"requests-{self._used}") as (home, counter):
            home.prepare(*PLACES)
            counter.delay(delay_s)
            costs = {
                **measure_steps(home, counter, home.place),
                **measure_run(home, counter, home.place),
            }
        self.kinds = {step: _by_table_and_kind(cost) for step, cost in costs.items()}
        self._print(costs)
        requests = {f"{step}_requests": cost.requests.total() for step, cost in costs.items()}
        return {**requests, **_seconds(costs)}

    def on_disk(self) -> Metrics:
        """Measure the steps with the tables in a folder."""
        self._used += 1
        with counted_home(self._context.home / f"requests-{self._used}") as (home, counter):
            home.prepare()
            return _seconds(
                {
                    **measure_steps(home, counter, home.place_in_folder),
                    **measure_run(home, counter, home.place_in_folder),
                }
            )

    def _print(self, costs: Mapping[str, StepCost]) -> None:
        for step, cost in costs.items():
            target = f" (target {TARGETS[step]})" if step in TARGETS else ""
            self._context.progress(f"  {step}: {cost.requests.total()} requests{target}")
            for table, kinds in self.kinds[step].items():
                parts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
                self._context.progress(f"    {table:<12} {sum(kinds.values()):>4}  {parts}")


def _seconds(costs: Mapping[str, StepCost]) -> dict[str, float]:
    return {f"{step}_seconds": cost.seconds for step, cost in costs.items()}


def _by_table_and_kind(cost: StepCost) -> dict[str, dict[str, int]]:
    tables: Counter[str] = Counter()
    for request, count in cost.requests.items():
        tables[request.table] += count
    return {
        table: {
            request.kind: count
            for request, count in cost.requests.most_common()
            if request.table == table
        }
        for table, _ in tables.most_common()
    }


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    stores = _Stores(context)
    data: dict[str, Any] = {
        "new_records": RECORDS,
        "partitions": PARTITIONS,
        "commits_since_checkpoint": COMMITS,
        "not_counted": "Spark's reads and writes of rows, and its commits of merges",
        "requests": stores.kinds,
    }

    def on_store(delay_s: float) -> Metrics:
        metrics = stores.on_store(delay_s)
        data["requests"] = stores.kinds
        return metrics

    yield Setup(
        sides=[
            Side(
                name="at_0_ms",
                what="an S3 server of this machine",
                run=lambda _: on_store(0.0),
            ),
            Side(
                name="at_30_ms",
                what="the same server, with each request delayed by 30 ms",
                run=lambda _: on_store(0.03),
            ),
            Side(name="disk", what="a folder", run=lambda _: stores.on_disk()),
        ],
        data=data,
    )


BENCHMARKS = [
    Benchmark(
        name="requests",
        title="Requests of each step to an object store, with ten commits in the log of each table",
        ratios=[
            *(
                Ratio(over="at_0_ms", under=None, metric=f"{step}_requests", at_most=target)
                for step, target in TARGETS.items()
            ),
            Ratio(over="at_30_ms", under="disk", metric="run_seconds", at_most=1.5),
        ],
        open=_open,
        records=RECORDS,
        full_records=RECORDS,
        repetitions=1,
        full_repetitions=3,
        in_short_form=False,
    )
]

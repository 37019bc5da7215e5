"""P4: nothing new to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.context import Context
from bench.frame import Benchmark, Ratio, Setup, Side
from bench.whole_runs import PARTITIONS, WholeRuns


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    runs = WholeRuns(context, "idle")
    context.progress("landing all records, so that none is left to read")
    runs.feed(0)
    runs.tidemark_ingest()
    runs.available_now()
    yield Setup(
        sides=[
            Side(
                name="tidemark",
                what="tidemark plan, the only command of a scheduled run without new records",
                run=lambda _: runs.tidemark_plan(),
            ),
            Side(
                name="available_now",
                what="spark-submit of a stream with availableNow",
                run=lambda _: runs.available_now(),
            ),
        ],
        data={"records_landed_before": context.records, "new_records": 0, "partitions": PARTITIONS},
    )


BENCHMARKS = [
    Benchmark(
        name="idle",
        title="P4: nothing new to read, whole processes",
        ratios=[
            Ratio(over="tidemark", under="available_now", metric="jvms", at_most=0),
            Ratio(over="tidemark", under="available_now", metric="cpu_seconds", at_most=0.1),
            Ratio(over="tidemark", under="available_now", metric="seconds"),
        ],
        open=_open,
        records=1_000,
        full_records=1_000,
    ),
]

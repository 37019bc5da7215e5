"""P3: a small cold run, whole processes from start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.context import Context
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.kafka import RECORD_BYTES
from bench.whole_runs import PARTITIONS, WholeRuns


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    runs = WholeRuns(context, "small")

    def fed(run: Callable[[], Metrics]) -> Callable[[int], Metrics]:
        def run_repetition(repetition: int) -> Metrics:
            runs.feed(repetition)
            return run()

        return run_repetition

    yield Setup(
        sides=[
            Side(
                name="tidemark",
                what="tidemark ingest: plan without a JVM, spark-submit jobs/ingest.py",
                run=fed(runs.tidemark_ingest),
            ),
            Side(
                name="spark_batch",
                what="spark-submit of a batch read of the same offsets, default options",
                run=fed(runs.plain_batch),
            ),
            Side(
                name="available_now",
                what="spark-submit of a stream with availableNow, default options",
                run=fed(runs.available_now),
            ),
        ],
        data={
            "new_records_each_repetition": context.records,
            "record_bytes": RECORD_BYTES,
            "partitions": PARTITIONS,
            "content": "appended to an existing table; one warm-up run is not measured",
        },
        warm_ups=1,
    )


BENCHMARKS = [
    Benchmark(
        name="small",
        title="P3: a small cold run, whole processes",
        ratios=[
            Ratio(over="tidemark", under="spark_batch", metric="seconds", at_most=0.6),
            Ratio(over="tidemark", under="available_now", metric="seconds", at_most=0.6),
            Ratio(over="tidemark", under="spark_batch", metric="cpu_seconds"),
            Ratio(over="tidemark", under="available_now", metric="cpu_seconds"),
        ],
        open=_open,
        records=1_000,
        full_records=1_000,
    ),
]

"""P2: one partition with nearly all records, against the same records spread evenly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.context import Context
from bench.frame import Benchmark, Ratio, Setup, Side
from bench.warm_runs import WarmRuns

HOT = 0.9
"""Share of the records that the first partition holds."""


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    even = WarmRuns(context, "even")
    skewed = WarmRuns(context, "skewed", first_share=HOT)
    with even.worker("tidemark", even.settings) as session:
        yield Setup(
            sides=[
                Side(
                    name="skewed",
                    what=f"one of the partitions holds {HOT:.0%} of the records",
                    run=lambda n: skewed.run(session, skewed.pipeline, "skewed", n),
                ),
                Side(
                    name="even",
                    what="the same number of records in every partition",
                    run=lambda n: even.run(session, even.pipeline, "even", n),
                ),
            ],
            data={"even": even.data, "skewed": skewed.data},
            warm_ups=1,
        )


BENCHMARKS = [
    Benchmark(
        name="skew",
        title="P2: a skewed topic against an even one, one warm session, each table verified after",
        ratios=[
            Ratio(over="skewed", under="even", metric="seconds", at_most=1.15),
            Ratio(over="skewed", under="even", metric="cpu_seconds"),
        ],
        open=_open,
        records=1_000_000,
        full_records=5_000_000,
    ),
]

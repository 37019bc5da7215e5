"""P10: cost of checking a landed batch, in addition to landing it, in one warm session."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.context import Context, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.kafka import fill_values, make_topic
from bench.quotes import SEED, VALUES, quotes
from bench.tables import verified
from bench.worker import CheckPipeline, Landing, LandPipeline, local_network, started

PARTITIONS = 6
_NAME = "prices"
"""Name of the pipeline and of its suite, which the project ships as an example."""


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    specs, tables = context.home / "pipelines", context.home / "tables"
    context.progress(f"producing {context.records:,} quotes")
    make_topic(context, _NAME, PARTITIONS)
    keys, values = quotes()
    fill_values(context, _NAME, PARTITIONS, context.records, values, keys)
    write_spec(specs, _NAME, _NAME, context.conf, quality={"suite": _NAME})
    app = context.app(tables, specs)
    settings = {**app.engines.submit_settings(app.spec(_NAME)), **local_network()}

    def landing(folder: Path) -> LandPipeline:
        return LandPipeline(
            environ=context.environ(folder, specs), pipeline=_NAME, requested_by="bench:check"
        )

    def checked(*, whole: bool) -> Callable[[Path], Landing]:
        return lambda folder: CheckPipeline(landing=landing(folder), whole=whole)

    context.progress("starting the session")
    place = context.home / "tidemark.log"
    with started("tidemark", {**settings, "spark.master": context.master}, place) as worker:

        def side(name: str, what: str, made: Callable[[Path], Landing]) -> Side:
            def run(number: int) -> Metrics:
                folder = tables / f"{name}{number}"
                try:
                    metrics = worker.land(made(folder))
                    verified(str(folder / "bronze" / _NAME), context.records)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return metrics

            return Side(name=name, what=what, run=run)

        yield Setup(
            sides=[
                side("landed", "plan, land, record", landing),
                side("blocked_or_not", "and the figures of built-in checks", checked(whole=False)),
                side("reported", "and the whole check: all rules, pages", checked(whole=True)),
            ],
            data={
                "records": context.records,
                "values": f"{VALUES:,} of JSON with a key, seed {SEED}",
                "partitions": PARTITIONS,
                "suite": f"include/expectations/{_NAME}.json",
            },
            warm_ups=1,
        )


BENCHMARKS = [
    Benchmark(
        name="check",
        title="P10: landing and checking against landing alone, warm",
        ratios=[
            # The time of a landing varies by more than the time of a check.
            Ratio(over="blocked_or_not", under=None, metric="over_its_landing", at_most=1.1),
            Ratio(over="blocked_or_not", under="landed", metric="seconds", at_most=1.1),
            Ratio(over="blocked_or_not", under="landed", metric="cpu_seconds"),
            Ratio(over="reported", under="landed", metric="seconds"),
        ],
        open=_open,
        records=1_000_000,
        full_records=5_000_000,
    )
]

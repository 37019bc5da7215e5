"""P7: reading committed offsets and planning, after few and after many plans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.clock import run_process
from bench.context import Context, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.history import DATA_COMPACTED_EVERY, UNCOMPACTED, about, write_history
from bench.kafka import fill_partitions, make_topic
from bench.probes import probe
from bench.whole_runs import program

PARTITIONS = 6


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    plans = {"few": UNCOMPACTED, "many": about(context.records)}
    yield Setup(
        sides=[_side(context, name, count) for name, count in plans.items()],
        data={
            "plans": plans,
            "partitions": PARTITIONS,
            "data_table_compacted_every": DATA_COMPACTED_EVERY,
            "plans_not_compacted": UNCOMPACTED,
        },
        warm_ups=1,
    )


def _side(context: Context, name: str, plans: int) -> Side:
    pipeline = f"{name}_plans"
    home = context.home / pipeline
    specs = home / "pipelines"
    environ = context.environ(home, specs)
    make_topic(context, pipeline, PARTITIONS)
    fill_partitions(context, pipeline, PARTITIONS, plans)
    write_spec(specs, pipeline, pipeline, context.conf)
    context.progress(f"recording {plans:,} plans")
    before = time.perf_counter()
    write_history(context.app(home, specs), pipeline, plans)
    context.progress(f"recorded in {time.perf_counter() - before:.0f} s")

    def run(_: int) -> Metrics:
        metrics = probe(home, "nothing_to_plan", [pipeline, str(plans)], environ)
        command = [program("tidemark"), "plan", pipeline]
        whole = run_process(command, home / "plan.log", environ).metrics()
        return {**metrics, **{f"process_{key}": value for key, value in whole.items()}}

    return Side(name=name, what=f"{plans:,} plans, all landed, nothing new in the topic", run=run)


BENCHMARKS = [
    Benchmark(
        name="history",
        title="P7: reading committed offsets and planning; `records` are the plans of `many`",
        ratios=[
            Ratio(over="many", under="few", metric="offsets_seconds", at_most=1.5),
            Ratio(over="many", under="few", metric="plan_seconds", at_most=1.5),
            Ratio(over="many", under="few", metric="process_seconds", at_most=1.5),
            Ratio(over="many", under="few", metric="plan_cpu_seconds"),
            Ratio(over="many", under="few", metric="ledger_seconds"),
        ],
        open=_open,
        records=1_000,
        full_records=10_000,
    ),
]

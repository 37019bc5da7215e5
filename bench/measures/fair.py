"""Small runs beside bulk loads on one Spark Connect server, with and without fair scheduling."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.context import Context, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.kafka import RECORD_BYTES, fill_topic, make_topic
from bench.tables import verified
from tidemark.app import App
from tidemark.core.errors import ExitCode
from tidemark.run import run
from tidemark.spark.engine import Server
from tidemark.spark.server import SparkServer
from tidemark.spark.settings import server_settings

RUNS = 10
"""Small runs of one repetition, one after the other."""

SMALL = 1_000
"""New records of each small run."""

_BULK = "bulk"
_FIRST_LOAD_S = 300


class _FairRuns:
    """A topic of bulk records, a small topic for each side, and servers.

    Args:
        context: Context of the run; `records` is the number of records per bulk load.
        servers: Exit stack that stops the servers.
    """

    def __init__(self, context: Context, servers: ExitStack) -> None:
        self._context = context
        self._servers = servers
        self._home = context.home / "fair"
        self._specs = self._home / "pipelines"
        self._produced: Counter[str] = Counter()
        self._add_topic(_BULK, partitions=6)
        context.progress(f"producing {context.records:,} records of {RECORD_BYTES} B")
        fill_topic(context, _BULK, context.records)

    def _add_topic(self, name: str, partitions: int) -> None:
        write_spec(self._specs, name, name, self._context.conf)
        make_topic(self._context, name, partitions)

    def server(self, name: str, settings: Mapping[str, str]) -> Server:
        """Start a server with the shipped settings and some overrides."""
        self._context.progress(f"starting the server {name}")
        layout = App.from_environment(self._environ(name)).layout
        shipped = server_settings(layout, {"spark.master": self._context.master})
        server = SparkServer(self._home / name, os.environ, {**shipped, **settings})
        self._servers.callback(server.stop)
        server.start(lambda _: None)
        found = server.running()
        if found is None:
            raise RuntimeError(f"the server {name} ended after its start")
        return found

    def side(self, name: str, what: str, server: Server, *, bulk: bool) -> Side:
        """Measure small runs on a server, alone or beside bulk loads."""
        self._add_topic(name, partitions=3)

        def run_repetition(repetition: int) -> Metrics:
            if not bulk:
                return self._small_runs(name, server)
            with self._loads(f"{name}{repetition}", server):
                return self._small_runs(name, server)

        return Side(name=name, what=what, run=run_repetition)

    def _small_runs(self, name: str, server: Server) -> Metrics:
        environ = self._environ(name)
        seconds = []
        for _ in range(RUNS):
            fill_topic(self._context, name, SMALL)
            self._produced[name] += SMALL
            before = time.perf_counter()
            _land(environ, server, name)
            seconds.append(time.perf_counter() - before)
        verified(str(self._home / name / "bronze" / name), self._produced[name])
        return {"seconds": statistics.median(seconds), "longest_seconds": max(seconds)}

    @contextmanager
    def _loads(self, folder: str, server: Server) -> Iterator[None]:
        """Run bulk loads one after the other in a separate process while the block runs."""
        spawned = multiprocessing.get_context("spawn")
        warm, enough = spawned.Event(), spawned.Event()
        environs = self._environ(f"{folder}/%d")
        loads = spawned.Process(target=_load, args=(environs, server, warm, enough), daemon=True)
        loads.start()
        try:
            if not warm.wait(_FIRST_LOAD_S):
                raise RuntimeError(f"the first bulk load takes more than {_FIRST_LOAD_S} s")
            yield
            if not loads.is_alive():
                raise RuntimeError("a bulk load failed beside the small runs")
        finally:
            enough.set()
            loads.join()

    def _environ(self, folder: str) -> dict[str, str]:
        return self._context.environ(Path(f"{self._home}/{folder}"), self._specs)


def _load(environ: Mapping[str, str], server: Server, warm: Any, enough: Any) -> None:
    """Land the bulk topic in new lakehouses, one after the other."""
    number = 0
    while not enough.is_set():
        lakehouse = environ["TIDEMARK_LAKEHOUSE"] % number
        _land({**environ, "TIDEMARK_LAKEHOUSE": lakehouse}, server, _BULK)
        warm.set()
        number += 1


def _land(environ: Mapping[str, str], server: Server, pipeline: str) -> None:
    """Plan and land new records, as `tidemark ingest` does."""
    app = App.from_environment(environ)
    plan = app.pipeline(pipeline).planner.plan(f"bench:{uuid4()}").plan
    if plan is None:
        raise RuntimeError(f"there is nothing to land for {pipeline}")
    done = run(app, server, "ingest", [plan.ref], print_line=lambda _: None)
    if done.exit_code != ExitCode.OK:
        raise RuntimeError(f"landing {plan.ref} ended with {done.exit_code}: {done.results}")


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    with ExitStack() as servers:
        runs = _FairRuns(context, servers)
        fair = runs.server("fair", {})
        fifo = runs.server("fifo", {"spark.scheduler.mode": "FIFO"})
        yield Setup(
            sides=[
                runs.side("alone", "small runs, nothing else on the server", fair, bulk=False),
                runs.side("beside_bulk", "small runs beside bulk loads", fair, bulk=True),
                runs.side("by_fifo", "the same with FIFO scheduling of jobs", fifo, bulk=True),
            ],
            data={
                "small_runs": RUNS,
                "records_of_each_small_run": SMALL,
                "records_of_each_bulk_load": context.records,
                "record_bytes": RECORD_BYTES,
                "bulk": "loads follow one another until the small runs have ended",
                "seconds": "median of the small runs, planning included, without start-up",
            },
            warm_ups=1,
        )


BENCHMARKS = [
    Benchmark(
        name="fair",
        title="Small runs beside bulk loads on one Spark Connect server",
        ratios=[
            Ratio(over="beside_bulk", under="alone", metric="seconds", at_most=3),
            Ratio(over="by_fifo", under="alone", metric="seconds"),
            Ratio(over="beside_bulk", under="by_fifo", metric="seconds"),
            Ratio(over="beside_bulk", under="by_fifo", metric="longest_seconds"),
        ],
        open=_open,
        records=200_000,
        full_records=2_000_000,
        repetitions=1,
        full_repetitions=3,
        in_short_form=False,
    ),
]

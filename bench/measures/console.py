"""Latency and memory of the console over many pipelines, partitions and plans."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import httpx2

from bench.clock import cpu_of_tree
from bench.context import Context, opened, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.history import about, write_compacted_history
from bench.kafka import fill_partitions, make_topic
from bench.probes import peak_mb
from bench.whole_runs import program
from tidemark.lake.status_table import write_status
from tidemark.spark.processes import last_lines

PARTITIONS = 50
PLANS = 50
"""About the number of plans of a pipeline with a short history."""
LONG = 2
"""Pipelines with a long history, of `PLANS` plans for each pipeline of the home."""
UNREAD = 20
"""Unread records of each partition."""
REQUESTS = 40
"""Requests of a page one after the other, and again as many, `CLIENTS` at once."""
CLIENTS = 4
_ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of the console.

    Attributes:
        path: Its address.
        text: A text that only the complete page contains.
    """

    path: str
    text: str


def _pages(plans: int) -> Mapping[str, _Page]:
    """Return a page of each kind, most of them of the first long history."""
    long, middle = "/pipelines/long_0", plans // 2
    zoomed = f"partition=7&start={middle}&end={middle + 10}"
    return {
        "overview": _Page("/", "long_0"),
        "pipeline": _Page(long, 'class="coverage"'),
        "zoom": _Page(f"{long}?{zoomed}", "Plans of these offsets"),
        "plans": _Page(f"{long}/plans?before={middle}", "Older plans"),
        "plan": _Page(f"{long}/plans/{middle}", "Events"),
        "records": _Page(f"{long}/records?partition=7&offset={middle}", f"plan {middle + 1}"),
        "quality": _Page(f"{long}/quality", "published"),
        "quarantine": _Page("/pipelines/typed/quarantine", "No open record"),
        "backfill": _Page(f"{long}/backfill?retained=true&readable_only=true", "chunk"),
        "cluster": _Page("/cluster", "long_0"),
        "metrics": _Page("/metrics", "# EOF"),
    }


class _Console:
    """A process of `tidemark console` with a logged-in client."""

    def __init__(self, client: httpx2.Client, process: subprocess.Popen[str]) -> None:
        self._client = client
        self._process = process

    def milliseconds(self, page: _Page) -> float:
        """Request a page; return the time until its last byte.

        Raises:
            RuntimeError: The page is not complete.
        """
        before = time.perf_counter()
        answer = self._client.get(page.path)
        spent = (time.perf_counter() - before) * 1000
        if answer.status_code != HTTPStatus.OK or page.text not in answer.text:
            raise RuntimeError(f"{page.path}: {answer.status_code} {answer.text[-3000:]}")
        return spent

    def cpu_seconds(self) -> float:
        """Return the processor seconds of the process so far."""
        return cpu_of_tree(self._process.pid)

    def peak_mb(self) -> float:
        """Return the peak memory of the process so far, in MiB."""
        return peak_mb(self._process.pid)


@contextmanager
def _served(environ: Mapping[str, str], log: Path) -> Iterator[_Console]:
    """Start `tidemark console`, log in by its link, and stop it at the end."""
    command = [program("tidemark"), "console", "--port", "0", "--json"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        printed = json.loads("".join(_until_end_of_json(process)) or "null")
        if printed is None:
            raise RuntimeError(f"the console did not start: {last_lines(log)}")
        with httpx2.Client(
            base_url=printed["address"], timeout=_ANSWER_S, trust_env=False
        ) as client:
            # The port listens before the address is printed, so this waits for the server.
            client.get(printed["link"])
            yield _Console(client, process)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _until_end_of_json(process: subprocess.Popen[str]) -> Iterator[str]:
    for line in process.stdout or ():
        yield line
        if line.startswith("}"):
            return


class _Home:
    """A home of many pipelines with recorded plans."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._specs = context.home / "pipelines"
        short, long = about(PLANS), about(PLANS * context.records)
        self.plans = {
            **{f"long_{number}": long for number in range(LONG)},
            **{f"short_{number:03}": short for number in range(context.records - LONG - 1)},
            "typed": short,
        }
        self.environ = context.environ(context.home / "lakehouse", self._specs)

    def write(self) -> None:
        """Produce the records, and write the plans and a status of each pipeline."""
        context = self._context
        app = context.app(context.home / "lakehouse", self._specs)
        produced_ms = time.time_ns() // 10**6
        produced_at = datetime.fromtimestamp(produced_ms / 1000, UTC)
        for name, plans in self.plans.items():
            make_topic(context, name, PARTITIONS)
            fill_partitions(context, name, PARTITIONS, plans + UNREAD, produced_ms)
            decode = {"decode": {"value": {"format": "string"}}} if name == "typed" else {}
            write_spec(self._specs, name, name, context.conf, **decode)
        context.progress("made the topics")
        for number, (name, plans) in enumerate(self.plans.items(), start=1):
            write_compacted_history(app, name, plans, produced_at)
            if number % 20 == 0:
                context.progress(f"wrote the plans of {number} pipelines")
        status = app.pipeline("long_0").status().as_row()
        rows = [{**status, "pipeline": name} for name in self.plans]
        write_status(app.layout.status_table, rows, of_all=True)

    def page(self, name: str, page: _Page) -> Side:
        """Return the side of one page, with a new process in each repetition."""

        def run(_: int) -> Metrics:
            with _served(self.environ, self._context.home / "console.log") as console:
                first = console.milliseconds(page)
                before = console.cpu_seconds()
                warm = [console.milliseconds(page) for _ in range(REQUESTS)]
                cpu = console.cpu_seconds() - before
                together = _together(console, [page] * REQUESTS)
                return {
                    "first_ms": first,
                    "p50_ms": statistics.median(warm),
                    "p95_ms": _p95(warm),
                    "slowest_ms": max(warm),
                    "cpu_ms": cpu / REQUESTS * 1000,
                    "p95_ms_of_four": _p95(together),
                    "peak_mb": console.peak_mb(),
                }

        return Side(name=name, what=page.path, run=run)

    def all_pages(self, pages: Sequence[_Page]) -> Side:
        """Return the side of one process that serves every page, `CLIENTS` at once."""

        def run(_: int) -> Metrics:
            with _served(self.environ, self._context.home / "console.log") as console:
                _together(console, pages)
                spent = _together(console, [*pages] * (REQUESTS // 4))
                return {
                    "p50_ms_of_four": statistics.median(spent),
                    "p95_ms_of_four": _p95(spent),
                    "peak_mb": console.peak_mb(),
                }

        return Side(name="all", what=f"all of these pages, {CLIENTS} at once", run=run)


def _together(console: _Console, pages: Sequence[_Page]) -> list[float]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        return [*pool.map(console.milliseconds, pages)]


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 95 // 100 - 1]


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    # Many partitions slow down a broker, so this benchmark has a separate broker.
    with opened(context.home, master=context.master, progress=context.progress) as own:
        home = _Home(replace(own, records=max(LONG + 1, context.records)))
        home.write()
        pages = _pages(home.plans["long_0"])
        yield Setup(
            sides=[
                *(home.page(name, page) for name, page in pages.items()),
                home.all_pages([*pages.values()]),
            ],
            data={
                "pipelines": len(home.plans),
                "partitions_of_each": PARTITIONS,
                "plans_of_long_and_typed": [home.plans["long_0"], home.plans["typed"]],
                "pipelines_with_long_history": LONG,
                "requests_of_a_page": 1 + 2 * REQUESTS,
            },
        )


_TARGETS = {"first_ms": 3_000, "p95_ms": 300}

BENCHMARKS = [
    Benchmark(
        name="console",
        title="The console's pages; `records` are the pipelines, plans grow with them",
        ratios=[
            *(
                Ratio(over=page, under=None, metric=metric, at_most=target)
                for page in _pages(PLANS)
                for metric, target in _TARGETS.items()
            ),
            Ratio(over="all", under=None, metric="peak_mb", at_most=400),
        ],
        open=_open,
        records=20,
        full_records=200,
        repetitions=1,
        full_repetitions=3,
        in_short_form=False,
    )
]

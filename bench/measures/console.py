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
from http import HTTPStatus
from pathlib import Path

import httpx2

from bench.clock import cpu_of_tree
from bench.console_home import LONG, PARTITIONS, PLANS, ConsoleHome, Page, pages
from bench.context import Context, opened
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.probes import peak_mb
from bench.whole_runs import program
from tidemark.spark.processes import last_lines

REQUESTS = 40
"""Requests of a page one after the other, and again as many, `CLIENTS` at once."""
CLIENTS = 4
_ANSWER_S = 120.0
_FILLED_S = 600.0


class _Console:
    """A process of `tidemark console` with a logged-in client."""

    def __init__(self, client: httpx2.Client, process: subprocess.Popen[str]) -> None:
        self._client = client
        self._process = process

    def milliseconds(self, page: Page) -> float:
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

    def fill(self, page: Page) -> None:
        """Request a page every second until it has all values.

        Raises:
            RuntimeError: The page lacks values after `_FILLED_S`.
        """
        ends = time.monotonic() + _FILLED_S
        while page.pending and page.pending in self._client.get(page.path).text:
            if time.monotonic() > ends:
                raise RuntimeError(f"{page.path} lacks values after {_FILLED_S:g} s")
            time.sleep(1)

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


class _Sides:
    """The sides, each with new processes of `tidemark console`."""

    def __init__(self, home: ConsoleHome, log: Path) -> None:
        self._home = home
        self._log = log

    def page(self, name: str, page: Page) -> Side:
        """Return the side of one page, with a new process in each repetition."""

        def run(_: int) -> Metrics:
            with _served(self._home.environ, self._log) as console:
                first = console.milliseconds(page)
                console.fill(page)
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

    def all_pages(self, shown: Sequence[Page]) -> Side:
        """Return the side of one process that serves every page, `CLIENTS` at once."""

        def run(_: int) -> Metrics:
            with _served(self._home.environ, self._log) as console:
                _together(console, shown)
                spent = _together(console, [*shown] * (REQUESTS // 4))
                return {
                    "p50_ms_of_four": statistics.median(spent),
                    "p95_ms_of_four": _p95(spent),
                    "peak_mb": console.peak_mb(),
                }

        return Side(name="all", what=f"all of these pages, {CLIENTS} at once", run=run)


def _together(console: _Console, shown: Sequence[Page]) -> list[float]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        return [*pool.map(console.milliseconds, shown)]


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 95 // 100 - 1]


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    # Many partitions slow down a broker, so this benchmark has a separate broker.
    with opened(context.home, master=context.master, progress=context.progress) as own:
        pipelines = max(LONG + 1, context.records)
        home = ConsoleHome(own, pipelines, PLANS * pipelines)
        home.write()
        shown = pages(home.plans["long_0"])
        sides = _Sides(home, own.home / "console.log")
        yield Setup(
            sides=[
                *(sides.page(name, page) for name, page in shown.items()),
                sides.all_pages([*shown.values()]),
            ],
            data={
                "pipelines": len(home.plans),
                "partitions_of_each": PARTITIONS,
                "plans_of_long_and_typed": [home.plans["long_0"], home.plans["typed"]],
                "pipelines_with_long_history": LONG,
                "requests_of_a_page": 1 + 2 * REQUESTS,
            },
        )


_TARGETS = {"first_ms": 3_000, "p95_ms": 300, "peak_mb": 400}

BENCHMARKS = [
    Benchmark(
        name="console",
        title="The console's pages; `records` are the pipelines, plans grow with them",
        ratios=[
            *(
                Ratio(over=page, under=None, metric=metric, at_most=target)
                for page in pages(PLANS)
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

"""Latency of Airflow's health endpoint while it serves pages of the console as its plugin."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any

import httpx2

from bench.console_home import LONG, PARTITIONS, ConsoleHome, pages
from bench.context import Context, opened
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from tidemark.app import App
from tidemark.dev.airflow_settings import password_file

CLIENTS = 4
REQUESTS = 40
"""Requests of the health endpoint in each repetition."""
PAUSE_S = 0.15
"""Pause between two requests of the health endpoint. So each browser refreshes during a repetition,
and the measured requests themselves are a small load."""
REFRESH_S = 5.0
"""Pause of a browser between two requests of its page."""
_PIPELINES = LONG + 1
_CONSOLE = "/tidemark"
"""`tidemark.airflow.plugin.PREFIX`; its module would load Airflow."""
_HEALTH = "/api/v2/monitor/health"
_OWN = "/api/v2/dags"
"""A list of Airflow's own, for comparison."""
_SHOWN = ("pipeline", "zoom", "plans", "plan", "records", "quality")
"""Pages of a pipeline with a long history."""
_ANSWER_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An API server of Airflow with a logged-in user.

    Attributes:
        url: Address of the server.
        headers: Headers of requests.
    """

    url: str
    headers: Mapping[str, str]

    @contextmanager
    def client(self) -> Iterator[httpx2.Client]:
        """Yield a client that keeps its connection."""
        with httpx2.Client(
            base_url=self.url, headers=dict(self.headers), timeout=_ANSWER_S, trust_env=False
        ) as client:
            yield client


def _request_until(
    stop: Event, answers: Any, server: Server, paths: Sequence[str], pause_s: float
) -> None:
    """Request paths in turn until `stop` is set, and count the answers."""
    with server.client() as client:
        for path in itertools.cycle(paths):
            client.get(path).raise_for_status()
            with answers.get_lock():
                answers.value += 1
            if stop.wait(pause_s):
                return


@contextmanager
def _clients(server: Server, paths: Sequence[str], pause_s: float) -> Iterator[Callable[[], int]]:
    """Let `CLIENTS` processes send requests during the block; yield the number of their answers.

    They are processes, so that they do not delay the measured requests.
    """
    spawning = multiprocessing.get_context("spawn")
    stop, answers = spawning.Event(), spawning.Value("i", 0)
    # Each client starts at another page.
    turns = [[*paths[number:], *paths[:number]] for number in range(CLIENTS)]
    processes = [
        spawning.Process(target=_request_until, args=(stop, answers, server, turn, pause_s))
        for turn in turns
    ]
    for process in processes:
        process.start()
    try:
        while answers.value < CLIENTS:
            if any(process.exitcode for process in processes):
                raise RuntimeError("a client failed; its error is above")
            time.sleep(0.1)
        yield lambda: int(answers.value)
    finally:
        stop.set()
        for process in processes:
            process.join()


def health_ms(server: Server) -> list[float]:
    """Request the health endpoint `REQUESTS` times; return the times in milliseconds."""
    spent = []
    with server.client() as client:
        # The first request opens the connection.
        for _ in range(REQUESTS + 1):
            before = time.perf_counter()
            client.get(_HEALTH).raise_for_status()
            spent.append((time.perf_counter() - before) * 1000)
            time.sleep(PAUSE_S)
    return spent[1:]


def _side(
    server: Server, name: str, what: str, paths: Sequence[str] = (), pause_s: float = 0.0
) -> Side:
    """Return the side of the health endpoint beside clients; without paths, alone."""

    def run(_: int) -> Metrics:
        if not paths:
            return _figures(health_ms(server))
        with _clients(server, paths, pause_s) as answers:
            before, began = answers(), time.perf_counter()
            spent = health_ms(server)
            seconds = time.perf_counter() - began
            return {**_figures(spent), "pages_per_second": (answers() - before) / seconds}

    return Side(name=name, what=what, run=run)


def _figures(spent: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": statistics.median(spent),
        "p95_ms": sorted(spent)[len(spent) * 95 // 100 - 1],
    }


def sides(server: Server, plans: int) -> list[Side]:
    """Return the sides of a server whose long pipelines have `plans` plans."""
    of_long = pages(plans)
    shown = [f"{_CONSOLE}{of_long[name].path}" for name in _SHOWN]
    return [
        _side(server, "alone", "the health endpoint without other requests"),
        _side(
            server,
            "viewers",
            f"beside {CLIENTS} browsers that refresh pages of a long ledger every {REFRESH_S:g} s",
            shown,
            REFRESH_S,
        ),
        _side(
            server,
            "pages",
            f"beside {CLIENTS} clients that request pages of a long ledger without a pause",
            shown,
        ),
        _side(
            server, "own", f"beside {CLIENTS} clients that request {_OWN} without a pause", [_OWN]
        ),
    ]


@contextmanager
def airflow_of(home: ConsoleHome) -> Iterator[Server]:
    """Run an Airflow with the pipelines of a home, none of which is scheduled."""
    airflow = App.from_environment(home.environ).airflow()
    try:
        airflow.start()
        airflow.api().wait_for_dags([f"tidemark_{name}" for name in home.plans])
        status = airflow.status()
        passwords = json.loads(password_file(status.home).read_text())
        login = {"username": status.username, "password": passwords[status.username]}
        with Server(url=status.url, headers={}).client() as client:
            token = client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
        yield Server(url=status.url, headers={"Authorization": f"Bearer {token}"})
    finally:
        airflow.stop()


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    with opened(context.home, master=context.master, progress=context.progress) as own:
        home = ConsoleHome(own, _PIPELINES, context.records)
        home.write()
        with airflow_of(home) as server:
            context.progress("started Airflow")
            yield Setup(
                sides=sides(server, home.plans["long_0"]),
                data={
                    "partitions": PARTITIONS,
                    "plans": home.plans["long_0"],
                    "clients": CLIENTS,
                    "requests_in_each_repetition": REQUESTS,
                },
                warm_ups=1,
            )


BENCHMARKS = [
    Benchmark(
        name="airflow_health",
        title="Airflow's health endpoint beside pages of the console; `records` are plans",
        ratios=[
            Ratio(over="viewers", under="alone", metric="p50_ms", at_most=1.2),
            Ratio(over="viewers", under="alone", metric="p95_ms"),
            Ratio(over="pages", under="alone", metric="p50_ms", at_most=1.2),
            Ratio(over="pages", under="alone", metric="p95_ms"),
            Ratio(over="own", under="alone", metric="p50_ms"),
            Ratio(over="own", under="alone", metric="p95_ms"),
        ],
        open=_open,
        records=1_000,
        full_records=10_000,
        repetitions=10,
        full_repetitions=20,
        in_short_form=False,
    )
]

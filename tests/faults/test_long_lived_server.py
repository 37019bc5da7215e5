"""Tests that small runs leave nothing in the heap of a Spark Connect server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.support.transactions import produce_values
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.app.run import run
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.spark.engine import Server
from tidemark.spark.server import SparkServer
from tidemark.spark.settings import server_settings
from tidemark.spec.layout import Layout

pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.faults),
    pytest.mark.skipif(shutil.which("jcmd") is None, reason="jcmd comes with a JDK only"),
]

FIRST, LAST = 50, 150
"""Numbers of runs after which the test measures the server."""

RETAINED = {
    "sessions": "org.apache.spark.sql.connect.service.SessionHolder",
    "classic sessions": "org.apache.spark.sql.classic.SparkSession",
    "executions": "org.apache.spark.sql.connect.service.ExecuteHolder",
    "cached plans": "org.apache.spark.sql.execution.CachedData",
}
"""Objects of the server that one run may leave behind, by class."""

CORES = 2
"""Cores of the server."""

IDLE_S = 70
"""Thread pools end an idle thread after 60 s."""


@dataclass(frozen=True)
class JvmState:
    """State of a JVM after a full collection.

    Attributes:
        heap: Bytes of live objects.
        objects: Number of live objects of each class of `RETAINED`.
        threads: Number of Java threads, by name without numbers, without those of pools.
        pools: Number of Java threads of each pool of `pool_limits`.
        largest: First lines of the histogram of classes.
    """

    heap: int
    objects: dict[str, int]
    threads: Counter[str]
    pools: Counter[str]
    largest: str


def jcmd(pid: int, command: str) -> str:
    completed = subprocess.run(
        ["jcmd", str(pid), command], capture_output=True, text=True, check=True
    )
    return completed.stdout


def pool_limits(pid: int) -> dict[str, int]:
    """Return the maximum size of pools that start threads on demand, by a part of their names.

    Spark's RPC server has one thread for each core, and at most eight. The JVM derives the number
    of its compiler threads from the cores of the machine.
    """
    compilers = re.search(r"-XX:CICompilerCount=(\d+)", jcmd(pid, "VM.flags"))
    assert compilers is not None
    return {"rpc-server": CORES, "CompilerThread": int(compilers[1])}


def threads(pid: int) -> Counter[str]:
    """Count Java threads by name, without numbers."""
    names = re.findall(r'^"(.*?)" #\d+', jcmd(pid, "Thread.print"), re.MULTILINE)
    return Counter(re.sub(r"\d+", "N", each) for each in names)


def split_pools(counted: Counter[str], pools: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """Return the threads that belong to no pool, and the number of threads of each pool."""
    others, sizes = Counter[str](), Counter[str]()
    for name, count in counted.items():
        pool = next((each for each in pools if each in name), None)
        if pool is None:
            others[name] += count
        else:
            sizes[pool] += count
    return others, sizes


def measure(pid: int) -> JvmState:
    """Wait until idle threads have ended, and measure the JVM."""
    counted, since = threads(pid), time.monotonic()
    while time.monotonic() - since < IDLE_S:
        time.sleep(5)
        if (now := threads(pid)) != counted:
            counted, since = now, time.monotonic()
    jcmd(pid, "GC.run")
    # A histogram counts live objects and runs another full collection first.
    histogram = jcmd(pid, "GC.class_histogram")
    total = re.search(r"^Total +\d+ +(\d+)", histogram, re.MULTILINE)
    assert total is not None
    counts = {
        name: sum(
            int(n)
            for n in re.findall(rf"(\d+) +\d+ +{re.escape(class_name)}(?: |$)", histogram, re.M)
        )
        for name, class_name in RETAINED.items()
    }
    others, pools = split_pools(counted, pool_limits(pid))
    return JvmState(
        heap=int(total[1]),
        objects=counts,
        threads=others,
        pools=pools,
        largest="\n".join(histogram.splitlines()[:60]),
    )


@pytest.fixture
def spark_server(layout: Layout, tmp_path: Path) -> Iterator[SparkServer]:
    """Start a separate server with the shipped settings."""
    shipped = server_settings(
        layout, {"spark.master": f"local[{CORES}]", "spark.driver.memory": "1g"}
    )
    # Without the options that other tests give to each JVM.
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    server = SparkServer(tmp_path / "spark", environ, shipped)
    try:
        server.start(lambda _: None)
        yield server
    finally:
        server.stop()


@pytest.mark.timeout(3_600)
def test_later_runs_leave_nothing_in_the_heap_of_a_server(
    broker: BrokerStatus, topic: TopicFactory, spark_server: SparkServer, tmp_path: Path
) -> None:
    name = topic()
    (tmp_path / "pipelines").mkdir()
    spec = f"name: events\ntopic: {name}\nschedule: '@daily'\nstart: earliest\n"
    (tmp_path / "pipelines" / "events.yaml").write_text(spec)
    environ = {
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
        connection_variable("kafka_default"): kafka_connection(broker.bootstrap),
    }
    server, pid = spark_server.running(), spark_server.status().pid
    assert server is not None
    assert pid is not None
    states = {}
    for number in range(1, LAST + 1):
        produce_values(broker.bootstrap, name, 10)
        ingest(environ, server, f"run {number}")
        if number in (FIRST, LAST):
            states[number] = measure(pid)
            print(number, states[number])
    first, last = states[FIRST], states[LAST]
    assert last.objects == first.objects
    assert last.threads == first.threads
    assert last.pools <= Counter(pool_limits(pid))
    assert abs(last.heap / first.heap - 1) < 0.05


def ingest(environ: dict[str, str], server: Server, requested_by: str) -> None:
    app = App(environ=environ)
    plan = app.pipeline("events").planner.plan(requested_by).plan
    assert plan is not None
    done = run(app, server, "ingest", [plan.ref], print_line=print)
    assert done.exit_code == ExitCode.OK
    assert done.results is not None
    assert (done.results[0]["wrote"], done.results[0]["records"]) == (True, 10)

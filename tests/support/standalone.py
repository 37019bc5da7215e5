"""A Spark standalone cluster from the pip package: a master and two workers, each a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.support.crashes import Running
from tests.support.waiting import wait_until
from tidemark.local.broker_settings import HOST
from tidemark.spark.submit import pyspark_folder, search_path

WORKERS = 2
WORKER_MEMORY = "1g"

_ANY_PORTS = ("--port", "0", "--webui-port", "0")
"""Free ports; the master prints them."""
_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_PAGE = re.compile(r"Bound MasterWebUI to \S+ and started at http://\S+:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """A running cluster. Each worker has one core and `WORKER_MEMORY`.

    Attributes:
        url: Argument of `--master`.
        page: Address of the master's web page.
        workers: The workers; executors run in the process sessions of their workers.
    """

    url: str
    page: str
    workers: tuple[Running, ...]

    def executors(self) -> list[int]:
        """Return the process ids of the living executors, by worker."""
        return [pid for worker in self.workers for pid in worker.find(_EXECUTOR)]

    def living_workers(self) -> int:
        """Return the number of workers that are alive according to the master."""
        return int(_master_state(self.page)["aliveworkers"])


@contextmanager
def standalone_cluster(home: Path) -> Iterator[Standalone]:
    """Run a separate cluster during the block. At its end all processes are killed.

    Args:
        home: Folder of all logs.
    """
    with ExitStack() as stack:

        def start(name: str, role: str, *arguments: str) -> Running:
            running = _start(home, name, [f"{_DEPLOY}.{role}", "--host", HOST, *arguments])
            stack.callback(running.kill)
            return running

        master = start("master", "master.Master", *_ANY_PORTS)
        page = _page(master)
        url = str(_master_state(page)["url"])
        workers = tuple(
            start(
                f"worker-{number}",
                "worker.Worker",
                *_ANY_PORTS,
                *("--cores", "1", "--memory", WORKER_MEMORY),
                *("--work-dir", str(home / f"worker-{number}")),
                url,
            )
            for number in range(1, WORKERS + 1)
        )
        cluster = Standalone(url=url, page=page, workers=workers)
        wait_until(lambda: cluster.living_workers() == WORKERS)
        yield cluster


def _start(home: Path, name: str, arguments: Sequence[str]) -> Running:
    spark = pyspark_folder()
    log = home / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(spark / "bin" / "spark-class"), *arguments],
            env=_environment(spark, home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home,
            start_new_session=True,
        )
    return Running(process=process, log=log)


def _environment(spark: Path, home: Path) -> dict[str, str]:
    """Return the environment of daemons and executors, without connections."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK"))}
    return {
        **kept,
        "PATH": search_path(kept),
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_DIRS": str(home / "scratch"),
        # Otherwise web pages listen on every address.
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # The REST server has the fixed port 6066, and jobs do not use it.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }


def _page(master: Running) -> str:
    """Wait until the master is alive, and return the address of its web page."""
    printed: list[str] = []

    def is_alive() -> bool:
        ports = _PAGE.findall(master.log.read_text())
        if master.process.poll() is not None:
            raise ChildProcessError(master.log.read_text())
        printed[:] = [f"http://{HOST}:{port}" for port in ports]
        return bool(printed) and _master_state(printed[0])["status"] == "ALIVE"

    wait_until(is_alive)
    return printed[0]


def _master_state(page: str) -> Mapping[str, Any]:
    """Return the state of the master, its workers and its applications."""
    with urlopen(f"{page}/json/", timeout=10) as answer:
        state: Mapping[str, Any] = json.load(answer)
    return state


# -- event log -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One attempt of a task in Spark's event log.

    Attributes:
        executor: Spark's id of the executor, or "driver".
        outcome: "Success", or the reason for the failure.
        written: Number of records that it wrote to a table.
    """

    executor: str
    outcome: str
    written: int


def event_log(folder: Path) -> dict[str, str]:
    """Create a folder, and return settings with which an application logs its events there."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def tasks(folder: Path) -> list[Task]:
    """Return the attempts of the one application of an event log, in the order of their ends."""
    (log,) = folder.iterdir()
    events = (json.loads(line) for line in log.read_text().splitlines())
    return [
        Task(
            executor=event["Task Info"]["Executor ID"],
            outcome=event["Task End Reason"]["Reason"],
            written=_written(event),
        )
        for event in events
        if event["Event"] == "SparkListenerTaskEnd"
    ]


def _written(event: Mapping[str, Any]) -> int:
    # An attempt without metrics was lost with its executor.
    metrics = event.get("Task Metrics") or {}
    return int(metrics.get("Output Metrics", {}).get("Records Written", 0))

"""Work that is timed from inside a process of its own: `python -m bench.probes NAME ARGUMENT ...`.

The clock starts when the libraries are loaded and nothing else is: no connection, no metadata. A
process of its own also has a peak of memory of its own. The result is a line of JSON.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.clock import run_process, timed
from bench.context import PROJECT
from bench.frame import Metrics
from bench.worker import LandPipeline
from tidemark.app import App

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_LIVE = re.compile(r"Pause Full \(System\.gc\(\)\) \d+M->(\d+)M\(")
_LOOK_EVERY_S = 1.0


def probe(home: Path, name: str, arguments: list[str], environ: Mapping[str, str]) -> Metrics:
    """Run a function of this module in a new process.

    Args:
        home: Gets the process's output.
        name: The function.
        arguments: Its arguments.
        environ: Makes the App there (`Context.environ`).
    """
    log = home / f"{name}.log"
    command = [sys.executable, "-m", "bench.probes", name, *arguments]
    run_process(command, log, environ, cwd=PROJECT)
    return dict(json.loads(log.read_text().splitlines()[-1]))


def peak_mb(pid: int | str = "self") -> float:
    """The most memory that a process has held so far, in MiB.

    Not `ru_maxrss`: a process begins with the one of the process that started it.
    """
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise RuntimeError("this system does not tell a process's peak of memory")
    return int(found[1]) / 1024


def list_offsets(pipeline: str, partitions: str) -> dict[str, float]:
    """Ask for the end of every partition of a pipeline's topic, with a client that is new."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    app = App.from_environment()
    spec = app.spec(pipeline)
    config = {**app.connections.kafka_config(spec.connection), "log_level": 0}
    with timed(time.process_time) as watch:
        admin = AdminClient(config)
        wanted = {
            TopicPartition(spec.topic, p): OffsetSpec.latest() for p in range(int(partitions))
        }
        told = admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30
        )
        offsets = [future.result().offset for future in told.values()]
    return {**watch.metrics(), "ranges": sum(offset > 0 for offset in offsets)}


def plan(pipeline: str) -> dict[str, float]:
    """Make the first plan of a pipeline."""
    # Loads what planning needs.
    _ = App.from_environment().pipeline(pipeline).planner
    app = App.from_environment()
    with timed(time.process_time) as watch:
        made = app.pipeline(pipeline).planner.plan("bench:plan").plan
    return {**watch.metrics(), "ranges": len(made.ranges) if made else 0}


def nothing_to_plan(pipeline: str, plans: str) -> dict[str, float]:
    """Read a pipeline's committed offsets, look for something to plan, and read all its plans.

    Raises:
        RuntimeError: There was something to plan, or other plans than one for each offset.
    """
    _ = App.from_environment().pipeline(pipeline).planner
    app = App.from_environment()
    with timed(time.process_time) as offsets_watch:
        known = app.control.summary(pipeline)
        committed = {known.committed_offset(partition) for partition in known.starts}
    with timed(time.process_time) as plan_watch:
        made = app.pipeline(pipeline).planner.plan("bench:history").plan
    with timed(time.process_time) as ledger_watch:
        ledger = app.control.ledger(pipeline)
    if made is not None or committed != {int(plans)} or len(ledger.plans) != int(plans):
        raise RuntimeError(f"{pipeline}: {made=}, {committed=}, {len(ledger.plans)} of {plans}")
    return {
        "offsets_seconds": offsets_watch.seconds,
        "offsets_cpu_seconds": offsets_watch.cpu_seconds,
        "plan_seconds": plan_watch.seconds,
        "plan_cpu_seconds": plan_watch.cpu_seconds,
        "ledger_seconds": ledger_watch.seconds,
        "plans": len(ledger.plans),
    }


def land(pipeline: str, settings: str, gc_log: str) -> dict[str, float]:
    """Plan and land in a new Spark session, and weigh the driver meanwhile.

    Its JVM has to collect all its garbage over and over, so the times mean nothing.

    Args:
        pipeline: Its first plan is landed.
        settings: The session's, as JSON.
        gc_log: Where these settings have the driver's JVM log its collections.

    Returns:
        Beside times, in MiB: the most that was live on the driver's heap, and the most memory
        that its JVM has held.
    """
    from tidemark.spark.sessions import open_application

    session = open_application(f"bench-{pipeline}", json.loads(settings))
    jvm = session.sparkContext._jvm
    landing = LandPipeline(environ={}, pipeline=pipeline, requested_by="bench:land")
    with _again_and_again(jvm.System.gc):
        landed = landing.land()
    live = [int(each) for each in _LIVE.findall(Path(gc_log).read_text())]
    jvm_mb = peak_mb(jvm.java.lang.ProcessHandle.current().pid())
    session.stop()
    return {**landed, "heap_mb": max(live), "jvm_mb": jvm_mb}


@contextmanager
def _again_and_again(look: Callable[[], object]) -> Iterator[None]:
    """Call something every second while the block runs, and once more after it."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            look()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()


_PROBES = {each.__name__: each for each in (list_offsets, plan, nothing_to_plan, land)}

if __name__ == "__main__":
    metrics = _PROBES[sys.argv[1]](*sys.argv[2:])
    print(json.dumps({**metrics, "peak_mb": peak_mb()}))

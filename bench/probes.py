"""Work that a separate process measures from inside: `python -m bench.probes NAME ARGUMENT ...`.

The clock starts after the libraries are loaded, and before any connection. The peak of memory is
that of the process. The result is a line of JSON.
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
        home: Folder for the output of the process.
        name: Name of the function.
        arguments: Arguments of the function.
        environ: Environment variables of the app in the process (`Context.environ`).
    """
    log = home / f"{name}.log"
    command = [sys.executable, "-m", "bench.probes", name, *arguments]
    run_process(command, log, environ, cwd=PROJECT)
    return dict(json.loads(log.read_text().splitlines()[-1]))


def peak_mb(pid: int | str = "self") -> float:
    """Return the peak memory of a process so far, in MiB.

    `ru_maxrss` is not suitable: a process begins with the value of its parent process.
    """
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise RuntimeError("this system does not report the peak memory of a process")
    return int(found[1]) / 1024


def list_offsets(pipeline: str, partitions: str) -> dict[str, float]:
    """Request the log end offset of every partition of a pipeline's topic, with a new client."""
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
        futures = admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30
        )
        offsets = [future.result().offset for future in futures.values()]
    return {**watch.metrics(), "ranges": sum(offset > 0 for offset in offsets)}


def plan(pipeline: str) -> dict[str, float]:
    """Make the first plan of a pipeline."""
    # Load the modules of planning.
    _ = App.from_environment().pipeline(pipeline).planner
    app = App.from_environment()
    with timed(time.process_time) as watch:
        made = app.pipeline(pipeline).planner.plan("bench:plan").plan
    return {**watch.metrics(), "ranges": len(made.ranges) if made else 0}


def nothing_to_plan(pipeline: str, plans: str) -> dict[str, float]:
    """Read a pipeline's committed offsets, request a plan, and read all of its plans.

    Raises:
        RuntimeError: A plan was made, or the committed offsets or the number of plans is wrong.
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
    """Plan and land in a new Spark session, and measure the driver's memory.

    The driver's JVM collects all garbage every second, so the times are meaningless.

    Args:
        pipeline: Pipeline without plans; its first plan is landed.
        settings: Settings of the session, as JSON.
        gc_log: File to which the driver's JVM logs its collections with these settings.

    Returns:
        The times, and in MiB the maximum of live objects on the driver's heap and the peak memory
        of its JVM.
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
    """Call a function every second while the block runs, and again after it."""
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

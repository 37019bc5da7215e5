"""Work that a separate process measures from inside: `python -m bench.probes NAME ARGUMENT ...`.

The clock starts after the libraries are loaded, and before any connection. The peak of memory is
that of the process. The result is a line of JSON.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.clock import run_process, timed
from bench.context import PROJECT
from bench.frame import Metrics
from tidemark.app.app import App

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


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


_PROBES = {each.__name__: each for each in (list_offsets, plan)}

if __name__ == "__main__":
    metrics = _PROBES[sys.argv[1]](*sys.argv[2:])
    print(json.dumps({**metrics, "peak_mb": peak_mb()}))

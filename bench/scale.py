"""A control table at size: `python -m bench.scale --pipelines 1000 --partitions 200`.

This is a simulation, because a Kafka cluster of this size is not available. It invents the
watermarks, and runs the product's code on a real Delta table. In each round, every pipeline reads
its summary, plans with the planner's functions, and records a plan and its landing in two commits.
JSON on standard output, progress on standard error. docs/explanation/scale.md has the conclusions.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from bench.context import HOME
from bench.frame import Spread
from bench.history import started
from bench.machine import machine_record
from tidemark.core import plan_rules
from tidemark.core.accounting import Landing
from tidemark.core.events import ControlEvent, Landed, Planned
from tidemark.core.ledger import CheckedLedger
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import PlanKind
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.lake.control_table import DeltaControlTable

OFFSETS = 100
"""New offsets of each partition in each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Measured seconds by operation."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Measure a block."""
        began = time.perf_counter()
        yield
        self.seconds[what].append(time.perf_counter() - began)

    def as_record(self) -> dict[str, dict[str, float]]:
        """Return minimum, median and maximum of each operation."""
        return {what: Spread.of(some).as_record() for what, some in self.seconds.items()}


def run_round(uri: str, pipelines: Sequence[str], partitions: int, number: int) -> Clock:
    """Run each pipeline once, one after the other, and return the measured seconds."""
    control, clock = DeltaControlTable(uri), Clock()
    for pipeline in pipelines:
        watermarks = _watermarks(pipeline, partitions, number)
        with clock.timed("summary"):
            ledger = CheckedLedger(control.summary(pipeline))
        with clock.timed("planning"):
            begun: list[ControlEvent] = [] if ledger.starts else [started(watermarks)]
            starts = dict.fromkeys(watermarks.partitions, 0) if begun else {}
            topic = plan_rules.ComparedTopic(ledger=ledger, watermarks=watermarks)
            ranges = plan_rules.live_ranges(topic, starts, None)
            plan = plan_rules.build_plan(
                topic, PlanKind.LIVE, RunOrigin(f"scale:{pipeline}:{number}"), ranges
            )
        with clock.timed("append"):
            control.append(ledger, [*begun, Planned(plan=plan)], datetime.now(UTC))
        with clock.timed("summary"):
            ledger = CheckedLedger(control.summary(pipeline))
        landing = Landing.of(plan, number, dict.fromkeys(range(len(ranges)), OFFSETS))
        landed = Landed(
            plan=plan, landing=landing, committed=ledger.committed_with(landing.spans())
        )
        with clock.timed("append"):
            control.append(ledger, [landed], datetime.now(UTC))
    return clock


def _watermarks(topic: str, partitions: int, number: int) -> TopicWatermarks:
    end = OFFSETS * number
    return TopicWatermarks(
        cluster_id="simulated",
        topic=topic,
        topic_id=f"id-of-{topic}",
        isolation_level=IsolationLevel.READ_COMMITTED,
        partitions={p: Watermarks(low=0, end=end, leader_epoch=0) for p in range(partitions)},
    )


def table_record(uri: str) -> dict[str, float]:
    """Return the time to open the table, and the size of its log and files."""
    began = time.perf_counter()
    table = DeltaTable(uri)
    return {
        "open_seconds": round(time.perf_counter() - began, 3),
        "commits": table.version() + 1,
        "files": len(table.file_uris()),
        "mb": round(sum(file.stat().st_size for file in Path(uri).rglob("*.*")) / 1e6, 1),
    }


def at_once(
    uri: str, pipelines: Sequence[str], partitions: int, number: int, writers: int
) -> Mapping[str, Any]:
    """Run each pipeline once, in several concurrent processes."""
    shares = [pipelines[first::writers] for first in range(writers)]
    began = time.perf_counter()
    with ProcessPoolExecutor(writers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_round, uri, share, partitions, number) for share in shares]
        clocks = [each.result() for each in futures]
    seconds = time.perf_counter() - began
    appends = [second for clock in clocks for second in clock.seconds["append"]]
    return {
        "writers": writers,
        "commits_per_second": round(2 * len(pipelines) / seconds, 1),
        "append": Spread.of(appends).as_record(),
    }


def simulate(
    uri: str, pipelines: int, partitions: int, rounds: int, writers: Sequence[int]
) -> dict[str, Any]:
    """Run all rounds, then one more round for each number of writers."""
    names = [f"pipeline_{number:05}" for number in range(pipelines)]
    stages = []
    for number in range(1, rounds + 1):
        clock = run_round(uri, names, partitions, number)
        stages.append({"round": number, **table_record(uri), "seconds": clock.as_record()})
        sys.stderr.write(f"{json.dumps(stages[-1])}\n")
    together = []
    for number, count in enumerate(writers, start=rounds + 1):
        together.append(at_once(uri, names, partitions, number, count))
        sys.stderr.write(f"{json.dumps(together[-1])}\n")
    return {"rounds": stages, "writers": together}


def main() -> int:
    """Parse the arguments, simulate in a temporary folder, and print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--pipelines", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=200, help="partitions of each pipeline")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--writers", type=int, nargs="*", default=[1, 4])
    options = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="scale-", dir=HOME)
    try:
        found = simulate(
            f"{folder}/control",
            options.pipelines,
            options.partitions,
            options.rounds,
            options.writers,
        )
    finally:
        shutil.rmtree(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    record = {"machine": machine_record(), **vars(options), **found, "peak_mb": round(peak)}
    print(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

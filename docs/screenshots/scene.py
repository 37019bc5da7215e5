"""Adds to the demo's data what pages can show: a gap, lost offsets, a blocked plan, and lag."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from tests.support.topics import delete_records
from tests.support.transactions import Record, produce_aborted, produce_records

from tidemark.app.app import App
from tidemark.app.pipelines import for_each
from tidemark.app.statuses import record_status
from tidemark.core.errors import ExitCode
from tidemark.core.offsets import Span
from tidemark.local.producer import produce
from tidemark.local.samples import SAMPLES, STEP_MS

PIPELINE = "prices"
"""Name of the pipeline, of its topic and of its sample."""
PARTITION = 5
"""A partition without records of the sample."""
GAP = Span(100, 141)
"""Offsets of an aborted transaction and its marker."""
LOST = Span(141, 201)
"""Offsets that Kafka deletes before a plan has read them."""
END = 341
"""End of the partition."""


def extend(app: App, bootstrap: str) -> None:
    """Add records, plans and decisions to a home, and record the lag after each step.

    Args:
        app: The home, whose broker and Spark server run.
        bootstrap: Address of the broker.
    """
    scene = _Scene(app, bootstrap)
    scene.produce(600)
    produce_records(bootstrap, PIPELINE, quotes(GAP.start))
    produce_aborted(bootstrap, PIPELINE, quotes(GAP.size - 1))
    scene.record_lag()
    scene.tidemark("run", PIPELINE)
    produce_records(bootstrap, PIPELINE, quotes(END - LOST.start))
    scene.produce(500)
    scene.delete_records_before(LOST.end)
    scene.tidemark("accept-loss", PIPELINE, "--reason", "retention was shorter than the outage")
    scene.tidemark("run", PIPELINE)
    produce_records(bootstrap, PIPELINE, quotes(20, partition=1, sign=b"-"))
    scene.produce(300)
    # The check blocks the plan, because of the negative prices.
    scene.tidemark("run", PIPELINE, expected=ExitCode.QUALITY_FAILED)
    scene.produce(400)
    scene.produce(150, "orders")
    # The plan stays open.
    scene.tidemark("plan", "orders")


def quotes(count: int, partition: int = PARTITION, sign: bytes = b"") -> Sequence[Record]:
    """Return prices of the sample for one partition; with `sign` before each price."""
    first_ms = int(time.time() * 1000) - count * STEP_MS
    samples = SAMPLES[PIPELINE].records(seed=2, start=0, count=count, base_ms=first_ms)
    return [
        Record(
            key=each.key,
            value=each.value and each.value.replace(b'"price":', b'"price":' + sign),
            headers=each.headers,
            timestamp_ms=each.timestamp_ms,
            partition=partition,
        )
        for each in samples
    ]


@dataclass(frozen=True)
class _Scene:
    app: App
    bootstrap: str

    def produce(self, records: int, sample: str = PIPELINE) -> None:
        produce({"bootstrap.servers": self.bootstrap}, sample, records=records)
        self.record_lag()

    def delete_records_before(self, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        delete_records(admin, PIPELINE, offset, PARTITION)
        self.record_lag()

    def tidemark(self, *words: str, expected: ExitCode = ExitCode.OK) -> None:
        """Run a command as a user does, in a process of its own."""
        command = [str(Path(sys.executable).with_name("tidemark")), *words]
        code = subprocess.run(command, env=self.app.environ, check=False).returncode
        if code != expected:
            raise SystemExit(f"`tidemark {' '.join(words)}` ended with exit code {code}")
        self.record_lag()

    def record_lag(self) -> None:
        record_status(
            self.app, for_each(self.app, list(self.app.specs), lambda each: each.report.status())
        )

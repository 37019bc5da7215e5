"""P1: Kafka to Delta in bulk, in warm sessions, against a batch and a stream of Spark alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.context import Context, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.kafka import RECORD_BYTES, consume_topic, fill_topic, make_topic
from bench.tables import verified
from bench.worker import (
    LandBatch,
    Landing,
    LandPipeline,
    LandStream,
    Worker,
    plain_settings,
    started,
)

TOPIC = "bulk"
"""Name of topic, pipeline and tables."""
PARTITIONS = 6


class _WarmRuns:
    """One topic full of records, and one pipeline over it.

    Args:
        context: Context of the run; `records` is the number of records of the topic.

    Attributes:
        settings: Spark settings of the pipeline, as shipped.
        data: Description of the topic, for the report.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._specs, self._tables = context.home / "pipelines", context.home / "tables"
        context.progress(f"producing {context.records:,} records of {RECORD_BYTES} B")
        make_topic(context, TOPIC, PARTITIONS)
        fill_topic(context, TOPIC, context.records)
        write_spec(self._specs, TOPIC, TOPIC, context.conf)
        app = context.app(self._tables, self._specs)
        self.settings: Mapping[str, str] = dict(app.engines.submit_settings(app.spec(TOPIC)))
        self.data: Mapping[str, Any] = {
            "records": context.records,
            "record_bytes": RECORD_BYTES,
            "partitions": PARTITIONS,
            "content": "random capital letters without a key",
        }

    def worker(self, name: str, settings: Mapping[str, str]) -> AbstractContextManager[Worker]:
        """Return a process with a session of these settings, on the master of all sides."""
        return started(self._context, name, settings)

    def table(self, folder: Path) -> str:
        """Return the path of the table that a landing below this folder creates."""
        return str(folder / "bronze" / TOPIC)

    def pipeline(self, folder: Path) -> LandPipeline:
        """Return a landing by Tidemark."""
        return LandPipeline(
            environ=self._context.environ(folder, self._specs),
            pipeline=TOPIC,
            requested_by=f"bench:{TOPIC}",
        )

    def run(
        self, by: Worker, landing: Callable[[Path], Landing], name: str, repetition: int
    ) -> Metrics:
        """Land the whole topic in a new table, verify the table, and remove it."""
        folder = self._tables / f"{name}{repetition}"
        try:
            metrics = by.land(landing(folder))
            held = verified(self.table(folder), self._context.records)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        per_second = self._context.records / metrics["seconds"]
        return {**metrics, "records_per_second": per_second, **held}


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    runs = _WarmRuns(context)
    # The sides differ only in settings of the work itself: all drivers have the same memory, and
    # none has a web UI.
    common = {
        "spark.driver.memory": runs.settings.get("spark.driver.memory", "1g"),
        "spark.ui.enabled": "false",
    }
    plain = {**plain_settings(context.master), **common}

    def land_batch(folder: Path) -> Landing:
        return LandBatch(bootstrap=context.bootstrap, topic=TOPIC, path=runs.table(folder))

    def land_stream(folder: Path) -> Landing:
        return LandStream(
            bootstrap=context.bootstrap,
            topic=TOPIC,
            path=runs.table(folder),
            checkpoint=str(folder / "checkpoint"),
        )

    with ExitStack() as stack:
        tidemark = stack.enter_context(runs.worker("tidemark", {**runs.settings, **common}))
        batch = stack.enter_context(runs.worker("spark_batch", plain))
        stream = stack.enter_context(runs.worker("available_now", plain))
        yield Setup(
            sides=[
                Side(
                    name="tidemark",
                    what="plan, land, confirm, record; settings as shipped",
                    run=lambda n: runs.run(tidemark, runs.pipeline, "tidemark", n),
                ),
                Side(
                    name="spark_batch",
                    what="spark.read.format('kafka') to Delta, default options",
                    run=lambda n: runs.run(batch, land_batch, "batch", n),
                ),
                Side(
                    name="available_now",
                    what="Structured Streaming, availableNow, to Delta, default options",
                    run=lambda n: runs.run(stream, land_stream, "stream", n),
                ),
                Side(
                    name="kafka_consumer",
                    what="Kafka's consumer perf tool: fetch only, one thread, nothing written",
                    run=lambda _: consume_topic(context, TOPIC, context.records),
                ),
            ],
            data=runs.data,
            warm_ups=1,
        )


BENCHMARKS = [
    Benchmark(
        name="bulk",
        title="P1: Kafka to Delta in bulk, warm sessions, each table verified after",
        ratios=[
            Ratio(over="tidemark", under="spark_batch", metric="records_per_second", at_least=1.45),
            Ratio(
                over="tidemark", under="available_now", metric="records_per_second", at_least=1.3
            ),
            Ratio(
                over="tidemark", under="kafka_consumer", metric="records_per_second", at_least=0.6
            ),
            Ratio(over="tidemark", under="spark_batch", metric="cpu_seconds"),
            Ratio(over="tidemark", under="available_now", metric="cpu_seconds"),
            Ratio(over="tidemark", under="spark_batch", metric="bytes", at_most=1.0),
            Ratio(over="tidemark", under="available_now", metric="bytes", at_most=1.0),
        ],
        open=_open,
        records=1_000_000,
        full_records=5_000_000,
    ),
]

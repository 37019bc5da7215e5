"""P1: Kafka to Delta in bulk, in warm sessions, against a batch and a stream of Spark alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.context import Context
from bench.frame import Benchmark, Ratio, Setup, Side
from bench.kafka import consume_topic
from bench.warm_runs import WarmRuns
from bench.worker import LandBatch, Landing, LandStream, plain_settings

TOPIC = "bulk"


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    runs = WarmRuns(context, TOPIC)
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

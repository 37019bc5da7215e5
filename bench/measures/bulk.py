"""P1: Kafka to Delta in bulk, warm sessions, against Spark's own two ways."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
    local_network,
    plain_settings,
    started,
)

TOPIC = "bulk"
PARTITIONS = 6


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    make_topic(context, TOPIC, PARTITIONS)
    context.say(f"producing {context.records:,} records of {RECORD_BYTES} B")
    fill_topic(context, TOPIC, context.records)
    specs, tables = context.home / "pipelines", context.home / "tables"
    write_spec(specs, "bulk", TOPIC, context.conf)
    app = context.app(tables, specs)
    settings = app.spark_settings(app.spec("bulk"))
    # Nothing that is not a setting of the work itself may differ: the peers get the same memory,
    # and do without a driver's page as well.
    common = {
        "spark.master": context.master,
        "spark.driver.memory": settings.get("spark.driver.memory", "1g"),
        "spark.ui.enabled": "false",
        **local_network(),
    }
    with ExitStack() as stack:

        def worker(name: str, own: dict[str, str]) -> Worker:
            context.say(f"starting the session of {name}")
            log = context.home / f"{name}.log"
            return stack.enter_context(started(name, {**own, **common}, log))

        tidemark = worker("tidemark", settings)
        batch = worker("spark_batch", plain_settings(context.master))
        stream = worker("available_now", plain_settings(context.master))

        def land_pipeline(folder: Path) -> Landing:
            return LandPipeline(
                environ=context.environ(folder, specs), pipeline="bulk", requested_by="bench:bulk"
            )

        def land_batch(folder: Path) -> Landing:
            return LandBatch(
                bootstrap=context.bootstrap, topic=TOPIC, path=str(folder / "bronze" / "bulk")
            )

        def land_stream(folder: Path) -> Landing:
            return LandStream(
                bootstrap=context.bootstrap,
                topic=TOPIC,
                path=str(folder / "bronze" / "bulk"),
                checkpoint=str(folder / "checkpoint"),
            )

        def run(by: Worker, make: Callable[[Path], Landing], name: str, repetition: int) -> Metrics:
            folder = tables / f"{name}{repetition}"
            try:
                metrics = dict(by.land(make(folder)))
                table = verified(str(folder / "bronze" / "bulk"), context.records)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return {**metrics, "records_per_second": context.records / metrics["seconds"], **table}

        yield Setup(
            sides=[
                Side(
                    name="tidemark",
                    what="plan, land, confirm, record; settings as shipped",
                    run=lambda n: run(tidemark, land_pipeline, "tidemark", n),
                ),
                Side(
                    name="spark_batch",
                    what="spark.read.format('kafka') to Delta, default options",
                    run=lambda n: run(batch, land_batch, "batch", n),
                ),
                Side(
                    name="available_now",
                    what="Structured Streaming, availableNow, to Delta, default options",
                    run=lambda n: run(stream, land_stream, "stream", n),
                ),
                Side(
                    name="kafka_consumer",
                    what="Kafka's consumer perf tool: fetch only, one thread, nothing written",
                    run=lambda _: consume_topic(context, TOPIC, context.records),
                ),
            ],
            data={
                "records": context.records,
                "record_bytes": RECORD_BYTES,
                "partitions": PARTITIONS,
                "content": "random capital letters without a key, spread evenly",
            },
            warm_ups=1,
        )


BENCHMARK = Benchmark(
    name="bulk",
    title="P1: Kafka to Delta in bulk, warm sessions, each table verified after",
    ratios=[
        Ratio(over="tidemark", under="spark_batch", metric="records_per_second", at_least=1.45),
        Ratio(over="tidemark", under="available_now", metric="records_per_second", at_least=1.3),
        Ratio(over="tidemark", under="kafka_consumer", metric="records_per_second", at_least=0.6),
        Ratio(over="tidemark", under="spark_batch", metric="cpu_seconds"),
        Ratio(over="tidemark", under="available_now", metric="cpu_seconds"),
        Ratio(over="tidemark", under="spark_batch", metric="bytes", at_most=1.0),
        Ratio(over="tidemark", under="available_now", metric="bytes", at_most=1.0),
    ],
    open=_open,
    records=1_000_000,
    full_records=5_000_000,
)

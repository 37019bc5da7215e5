"""P11: Kafka to a bronze and a typed JSON table, warm, against streams with from_json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from bench.context import Context, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.kafka import fill_topic, make_topic
from bench.tables import verified
from bench.worker import (
    DecodePipeline,
    DecodeStream,
    Landing,
    LandPipeline,
    Worker,
    local_network,
    plain_settings,
    started,
)

TOPIC = "typed"
PARTITIONS = 6
_SCHEMA = {
    "ticker": "string",
    "price": "decimal(18,4)",
    "quantity": "long",
    "at": "timestamp",
    "venue": "string",
    "note": "string",
}
_VALUES = 10_000
_SEED = 11


def _value(random: Random, number: int) -> str:
    """About 200 bytes of JSON."""
    return json.dumps(
        {
            "ticker": f"T{random.randrange(500):03}",
            "price": f"{random.randrange(10**6)}.{random.randrange(10**4):04}",
            "quantity": random.randrange(10**6),
            "at": f"2026-03-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:00.123Z",
            "venue": random.choice(["XNYS", "XNAS", "XLON"]),
            "note": "".join(random.choices("abcdefghijklmnopqrstuvwxyz ", k=70)),
        }
    )


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    specs, tables = context.home / "pipelines", context.home / "tables"
    payloads = context.home / "payloads"
    random = Random(_SEED)
    payloads.write_text("\n".join(_value(random, number) for number in range(_VALUES)))
    context.say(f"producing {context.records:,} records of JSON")
    make_topic(context, TOPIC, PARTITIONS)
    fill_topic(context, TOPIC, context.records, payloads=payloads)
    decode = {"key": {"format": "string"}, "value": {"format": "json", "schema": _SCHEMA}}
    write_spec(specs, TOPIC, TOPIC, context.conf, decode=decode)
    app = context.app(tables, specs)
    settings = dict(app.spark_settings(app.spec(TOPIC)))
    common = {
        "spark.driver.memory": settings.get("spark.driver.memory", "1g"),
        "spark.ui.enabled": "false",
    }
    plain = {
        **plain_settings(context.master),
        **common,
        # What the moments of the records mean is the same for all.
        "spark.sql.session.timeZone": "UTC",
    }

    def tidemark(folder: Path) -> Landing:
        return DecodePipeline(
            landing=LandPipeline(
                environ=context.environ(folder, specs), pipeline=TOPIC, requested_by="bench:typed"
            )
        )

    def stream(*, in_one: bool) -> Callable[[Path], Landing]:
        return lambda folder: DecodeStream(
            bootstrap=context.bootstrap,
            topic=TOPIC,
            bronze=str(folder / "bronze" / TOPIC),
            typed=str(folder / "silver" / TOPIC),
            schema=", ".join(f"`{name}` {kind}" for name, kind in _SCHEMA.items()),
            checkpoint=str(folder / "checkpoint"),
            in_one=in_one,
        )

    def run(worker: Worker, landing: Callable[[Path], Landing], name: str, number: int) -> Metrics:
        folder = tables / f"{name}{number}"
        try:
            metrics = worker.land(landing(folder))
            held = {
                f"{layer}_{key}": value
                for layer in ("bronze", "silver")
                for key, value in verified(str(folder / layer / TOPIC), context.records).items()
                if key == "bytes"
            }
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        per_second = context.records / metrics["seconds"]
        return {**metrics, "records_per_second": per_second, **held}

    with ExitStack() as stack:

        def worker(name: str, chosen: dict[str, str]) -> Worker:
            context.say(f"starting the session of {name}")
            placed = {**chosen, "spark.master": context.master, **local_network()}
            return stack.enter_context(started(name, placed, context.home / f"{name}.log"))

        ours = worker("tidemark", {**settings, **common})
        two, one = worker("two_streams", plain), worker("foreach_batch", plain)
        yield Setup(
            sides=[
                Side(
                    name="tidemark",
                    what="plan, land, record, then the same for the typed table; as shipped",
                    run=lambda n: run(ours, tidemark, "tidemark", n),
                ),
                Side(
                    name="two_streams",
                    what="availableNow to a bronze table, availableNow with from_json to another",
                    run=lambda n: run(two, stream(in_one=False), "two", n),
                ),
                Side(
                    name="foreach_batch",
                    what="availableNow, each micro-batch persisted and written to both",
                    run=lambda n: run(one, stream(in_one=True), "one", n),
                ),
            ],
            data={
                "records": context.records,
                "values": f"{_VALUES:,} of JSON, about 200 B, seed {_SEED}",
                "partitions": PARTITIONS,
            },
            warm_ups=1,
        )


BENCHMARK = Benchmark(
    name="typed",
    title="P11: Kafka to a bronze and a typed JSON table, warm sessions, both verified after",
    ratios=[
        Ratio(over="tidemark", under="two_streams", metric="records_per_second", at_least=1.3),
        Ratio(over="tidemark", under="foreach_batch", metric="records_per_second", at_least=1.3),
        Ratio(over="tidemark", under="two_streams", metric="cpu_seconds"),
        Ratio(over="tidemark", under="foreach_batch", metric="cpu_seconds"),
        Ratio(over="tidemark", under="two_streams", metric="silver_bytes", at_most=1.1),
    ],
    open=_open,
    records=1_000_000,
    full_records=5_000_000,
)

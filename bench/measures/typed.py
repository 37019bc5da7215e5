"""P11: Kafka to a bronze and a typed table, warm, against streams with Spark's own decoders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice, permutations
from pathlib import Path
from random import Random
from typing import Any

import fastavro
from tests.support.protobuf import message_type
from tests.support.registry import Registry, avro_bytes, framed, running_registry

from bench.context import Context, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.kafka import fill_values, make_topic
from bench.tables import decoded, verified
from bench.worker import (
    DecodePipeline,
    DecodeStream,
    Landing,
    LandPipeline,
    Worker,
    plain_settings,
    started,
)

PARTITIONS = 6
_SCHEMA = {
    "ticker": "string",
    "price": "decimal(18,4)",
    "quantity": "long",
    "at": "timestamp",
    "venue": "string",
    "note": "string",
}
_AVRO = {
    "type": "record",
    "name": "Trade",
    "fields": [
        {"name": "ticker", "type": "string"},
        {"name": "price", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4}},
        {"name": "quantity", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "venue", "type": "string"},
        {"name": "note", "type": ["null", "string"]},
    ],
}  # fmt: skip
_GROUPS, _FIELDS, _NESTED_VALUES = 4, 10, 20_000
"""Objects of a nested record, fields of each, and number of different values of about 1 kB."""
_PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Trade {
  string ticker = 1;
  string price = 2;
  int64 quantity = 3;
  google.protobuf.Timestamp at = 4;
  string venue = 5;
  optional string note = 6;
}
"""
"""Protobuf has no decimals: a price is text."""
_VALUES = 200_000
"""Number of different values, large enough that Parquet stores no column as a dictionary."""
_SEED = 11
_SCHEMAS, _SCHEMAS_OF_FORM, _RECORDS_OF_SCHEMA = 1_000, 10, 200
"""Maximum number of Avro schemas, schemas of one form, and minimum records of each schema."""


def _record(random: Random, number: int) -> dict[str, Any]:
    """Return a record; all formats are measured with the same records."""
    return {
        "ticker": f"T{random.randrange(500):03}",
        "price": Decimal(random.randrange(10**10)) / 10**4,
        "quantity": random.randrange(10**6),
        "at": datetime(2026, 3, 1 + number % 28, number % 24, number % 60, tzinfo=UTC),
        "venue": random.choice(["XNYS", "XNAS", "XLON"]),
        "note": "".join(random.choices("abcdefghijklmnopqrstuvwxyz ", k=70)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The values of a topic, and how each side decodes them.

    Attributes:
        topic: Name of the topic and of the pipeline.
        values: Values to produce, in turn.
        decode: Section of the spec for values.
        stream: Arguments of `DecodeStream` that decode the values.
        environ: Further environment variables of Tidemark's side.
        beside: The same records as another kind, which Tidemark's side decodes as well.
        side: Name of the side that decodes this kind.
    """

    topic: str
    values: Sequence[bytes]
    decode: Mapping[str, Any]
    stream: Mapping[str, str]
    environ: Mapping[str, str] = field(default_factory=dict)
    beside: Kind | None = None
    side: str = "tidemark"


@contextmanager
def _json_values(_: Context) -> Iterator[Kind]:
    random = Random(_SEED)
    records = [_record(random, number) for number in range(_VALUES)]
    fields = ", ".join(f"`{name}` {kind}" for name, kind in _SCHEMA.items())
    yield Kind(
        topic="typed",
        values=[
            json.dumps({**each, "price": str(each["price"]), "at": each["at"].isoformat()}).encode()
            for each in records
        ],
        decode={"format": "json", "schema": _SCHEMA},
        stream={"decoded": f"from_json(CAST(value AS STRING), '{fields}')"},
    )


@contextmanager
def _nested_values(_: Context) -> Iterator[Kind]:
    """Records with three objects and a list of one object, each with ten fields."""
    random = Random(_SEED)
    kinds = [["long", "string", "double"][number % 3] for number in range(_FIELDS)]
    group = {f"field_{number}": kind for number, kind in enumerate(kinds)}
    names = [f"group_{number}" for number in range(_GROUPS)]
    schema = {name: [group] if name == names[-1] else group for name in names}
    inner = ", ".join(f"{name}: {kind.replace('long', 'bigint')}" for name, kind in group.items())
    columns = ", ".join(
        f"{name} {'ARRAY<' * is_list}STRUCT<{inner}>{'>' * is_list}"
        for name, is_list in ((each, each == names[-1]) for each in names)
    )
    makers: Mapping[str, Callable[[], object]] = {
        "long": lambda: random.randrange(10**9),
        "string": lambda: "".join(random.choices("abcdefghijklmnopqrstuvwxyz ", k=12)),
        "double": lambda: random.random(),
    }

    def record() -> dict[str, Any]:
        made = {name: {each: makers[kind]() for each, kind in group.items()} for name in names}
        return {**made, names[-1]: [made[names[-1]]]}

    yield Kind(
        topic="typed_nested",
        values=[json.dumps(record()).encode() for _ in range(_NESTED_VALUES)],
        decode={"format": "json", "schema": schema},
        stream={"decoded": f"from_json(CAST(value AS STRING), '{columns}')"},
    )


@contextmanager
def _avro_values(context: Context) -> Iterator[Kind]:
    with running_registry(context.home / "registry") as registry:
        many = _many_avro(registry, "typed_avro_many", context.records)
        yield replace(_avro(registry, "typed_avro"), beside=many)


def _avro(registry: Registry, topic: str) -> Kind:
    random = Random(_SEED)
    number = registry.register(f"{topic}-value", _AVRO)
    schema = fastavro.parse_schema(_AVRO)
    return Kind(
        topic=topic,
        values=[
            framed(number, avro_bytes(schema, _record(random, each))) for each in range(_VALUES)
        ],
        decode={"format": "avro"},
        stream={"avro": json.dumps(_AVRO)},
        environ=registry.environ(),
    )


def _many_avro(registry: Registry, topic: str, records: int) -> Kind:
    """Return the records of `_avro`, written with many schemas in turn.

    A tenth of the schemas have different orders of fields, so that they decode differently. The
    other schemas differ from these only in their documentation.
    """
    random = Random(_SEED)
    count = min(_SCHEMAS, records // _RECORDS_OF_SCHEMA)
    forms = max(1, count // _SCHEMAS_OF_FORM)
    orders = list(islice(permutations(_AVRO["fields"]), forms))
    made = [
        {**_AVRO, "fields": orders[number % forms], "doc": str(number)} for number in range(count)
    ]
    ids = [registry.register(f"{topic}-value", each) for each in made]
    schemas = [fastavro.parse_schema(each) for each in made]
    return Kind(
        topic=topic,
        values=[
            framed(ids[each % count], avro_bytes(schemas[each % count], _record(random, each)))
            for each in range(_VALUES)
        ],
        decode={"format": "avro"},
        stream={},
        environ=registry.environ(),
        side="many_schemas",
    )


@contextmanager
def _protobuf_values(context: Context) -> Iterator[Kind]:
    random = Random(_SEED)
    made = message_type(_PROTOBUF, "Trade")

    def value(number: int) -> bytes:
        record = _record(random, number)
        trade = made(**{**record, "price": str(record["price"])})
        return b"\x00" + bytes(trade.SerializeToString())

    with running_registry(context.home / "registry") as registry:
        number = registry.register("typed_protobuf-value", _PROTOBUF, "PROTOBUF")
        yield Kind(
            topic="typed_protobuf",
            values=[framed(number, value(each)) for each in range(_VALUES)],
            decode={"format": "protobuf"},
            stream={},
            environ=registry.environ(),
            beside=replace(_avro(registry, "typed_protobuf_as_avro"), side="avro"),
        )


def _opened(
    kinds: Callable[[Context], AbstractContextManager[Kind]],
) -> Callable[[Context], AbstractContextManager[Setup]]:
    """Return the function that prepares the benchmark for a kind of values."""

    @contextmanager
    def opened(context: Context) -> Iterator[Setup]:
        with kinds(context) as kind:
            yield from _open(context, kind)

    return opened


def _produce(context: Context, kind: Kind, specs: Path) -> None:
    context.progress(f"producing {context.records:,} records of {kind.decode['format']}")
    make_topic(context, kind.topic, PARTITIONS)
    fill_values(context, kind.topic, PARTITIONS, context.records, kind.values)
    # The streams check nothing, so records are decoded before their check here, too.
    decode = {"publish": "always", "key": {"format": "string"}, "value": dict(kind.decode)}
    write_spec(specs, kind.topic, kind.topic, context.conf, decode=decode)


def _open(context: Context, kind: Kind) -> Iterator[Setup]:
    topic = kind.topic
    specs, tables = context.home / "pipelines", context.home / "tables"
    for each in (kind, kind.beside):
        if each is not None:
            _produce(context, each, specs)
    app = context.app(tables, specs)
    settings = dict(app.engines.submit_settings(app.spec(topic)))
    common = {
        "spark.driver.memory": settings.get("spark.driver.memory", "1g"),
        "spark.ui.enabled": "false",
    }
    plain = {
        **plain_settings(context.master),
        **common,
        # All sides interpret timestamps in the same time zone.
        "spark.sql.session.timeZone": "UTC",
    }

    def tidemark(kind: Kind) -> Callable[[Path], Landing]:
        return lambda folder: DecodePipeline(
            landing=LandPipeline(
                environ={**context.environ(folder, specs), **kind.environ},
                pipeline=kind.topic,
                requested_by="bench:typed",
            )
        )

    def stream(*, in_one: bool) -> Callable[[Path], Landing]:
        return lambda folder: DecodeStream(
            bootstrap=context.bootstrap,
            topic=topic,
            bronze=str(folder / "bronze" / topic),
            typed=str(folder / "silver" / topic),
            **kind.stream,
            checkpoint=str(folder / "checkpoint"),
            in_one=in_one,
        )

    def run(
        worker: Worker,
        landing: Callable[[Path], Landing],
        name: str,
        number: int,
        topic: str = topic,
    ) -> Metrics:
        folder = tables / f"{name}{number}"
        try:
            metrics = worker.land(landing(folder))
            held = {
                f"{layer}_{key}": value
                for layer, check in (("bronze", verified), ("silver", decoded))
                for key, value in check(str(folder / layer / topic), context.records).items()
                if key == "bytes"
            }
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        per_second = context.records / metrics["seconds"]
        return {**metrics, "records_per_second": per_second, **held}

    with ExitStack() as stack:

        def worker(name: str, chosen: dict[str, str]) -> Worker:
            return stack.enter_context(started(context, name, chosen))

        ours = worker("tidemark", {**settings, **common})
        sides = [
            Side(
                name="tidemark",
                what="plan, land, record, then decode into the typed table; as shipped",
                run=lambda n: run(ours, tidemark(kind), "tidemark", n),
            )
        ]
        if kind.beside is not None:
            beside = kind.beside
            sides.append(
                Side(
                    name=beside.side,
                    what=f"the same for the same records in topic {beside.topic}",
                    run=lambda n: run(ours, tidemark(beside), "beside", n, beside.topic),
                )
            )
        if kind.stream:
            two, one = worker("two_streams", plain), worker("foreach_batch", plain)
            sides += [
                Side(
                    name="two_streams",
                    what="two streams with availableNow: to bronze, and decoded by Spark to typed",
                    run=lambda n: run(two, stream(in_one=False), "two", n),
                ),
                Side(
                    name="foreach_batch",
                    what="availableNow, each micro-batch persisted and written to both",
                    run=lambda n: run(one, stream(in_one=True), "one", n),
                ),
            ]
        yield Setup(
            sides=sides,
            data={
                "records": context.records,
                "values": f"{len(kind.values):,} of {kind.decode['format']}, seed {_SEED}",
                "partitions": PARTITIONS,
            },
            # The JVM compiles decoders slowly: the second run is not the fastest yet.
            warm_ups=2,
        )


_RATIOS = [
    Ratio(over="tidemark", under="two_streams", metric="records_per_second", at_least=1.3),
    Ratio(over="tidemark", under="foreach_batch", metric="records_per_second", at_least=1.3),
    Ratio(over="tidemark", under="two_streams", metric="cpu_seconds"),
    Ratio(over="tidemark", under="foreach_batch", metric="cpu_seconds"),
    Ratio(over="tidemark", under="two_streams", metric="silver_bytes", at_most=1.1),
]
_MANY_SCHEMAS = [
    Ratio(over="many_schemas", under="tidemark", metric=metric)
    for metric in ("decode_seconds", "cpu_seconds")
]
_BESIDE_AVRO = [
    Ratio(over="tidemark", under="avro", metric=metric)
    for metric in ("records_per_second", "decode_seconds", "cpu_seconds")
]
BENCHMARKS = [
    Benchmark(
        name=name,
        title=f"P11: Kafka to a bronze and a typed {what} table, warm, both verified after",
        ratios=ratios,
        open=_opened(kinds),
        records=records,
        full_records=5 * records,
        in_short_form=name != "typed_nested",
    )
    for name, what, records, kinds, ratios in (
        ("typed", "JSON", 1_000_000, _json_values, _RATIOS),
        ("typed_nested", "nested JSON", 200_000, _nested_values, _RATIOS),
        ("typed_avro", "Avro", 1_000_000, _avro_values, [*_RATIOS, *_MANY_SCHEMAS]),
        ("typed_protobuf", "Protobuf", 1_000_000, _protobuf_values, _BESIDE_AVRO),
    )
]

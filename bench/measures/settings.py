"""The effect of each shipped setting: the shipped settings against settings with one change.

Each variation has its own run of the shipped settings, next to it in time. A single shipped run
would be minutes away from most variations. Other work of the machine in between would look like
the effect of a setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.context import Context
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.warm_runs import WarmRuns
from bench.worker import LandPipeline, Worker

_JVM_OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A change of the shipped settings.

    Attributes:
        name: Short name.
        what: Description of the change.
        session: Spark or Hadoop settings for the landing.
        kafka: Options of the Kafka source.
        records_per_task: Value instead of the spec's.
        jvm_options: Further options of the driver's JVM; such a variation has a separate JVM.
    """

    name: str
    what: str
    session: Mapping[str, str] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict)
    records_per_task: int | None = None
    jvm_options: str = ""


SHIPPED = Variation(name="shipped", what="settings as shipped")
_WAIT = {"kafka.fetch.max.wait.ms": "500"}
_POLL = {"kafka.max.poll.records": "500"}
_FETCH = {"kafka.max.partition.fetch.bytes": str(1024 * 1024)}
_BUFFER = {"kafka.receive.buffer.bytes": str(64 * 1024)}
_PAYLOAD = ("key", "value")

VARIATIONS: Sequence[Variation] = (
    Variation(
        name="consumer_defaults",
        what="the Java consumer's defaults",
        kafka=_WAIT | _POLL | _FETCH | _BUFFER,
    ),
    Variation(name="wait_default", what="fetch.max.wait.ms of 500", kafka=_WAIT),
    Variation(name="poll_default", what="max.poll.records of 500", kafka=_POLL),
    Variation(name="fetch_default", what="the consumer's default fetch size", kafka=_FETCH),
    Variation(
        name="no_crc", what="record batches not checked", kafka={"kafka.check.crcs": "false"}
    ),
    Variation(
        name="int96",
        what="Spark's default form of timestamps",
        session={"spark.sql.parquet.outputTimestampType": "INT96"},
    ),
    Variation(
        name="dictionary",
        what="Parquet's default: dictionaries for key, value, offset",
        session={f"parquet.enable.dictionary#{c}": "true" for c in (*_PAYLOAD, "offset")},
    ),
    Variation(
        name="no_statistics",
        what="no statistics of key and value",
        session={f"parquet.column.statistics.enabled#{c}": "false" for c in _PAYLOAD},
    ),
    Variation(
        name="row_groups",
        what="Parquet's default: row groups of 128 MiB",
        session={"parquet.block.size": str(128 * 2**20)},
    ),
    Variation(
        name="checksum",
        what="Parquet's default: a checksum for each page",
        session={"parquet.page.write-checksum.enabled": "true"},
    ),
    Variation(name="zstd", what="zstd", session={"spark.sql.parquet.compression.codec": "zstd"}),
    Variation(
        name="lz4_raw", what="lz4_raw", session={"spark.sql.parquet.compression.codec": "lz4_raw"}
    ),
    Variation(name="small_tasks", what="50,000 records for a task", records_per_task=50_000),
    Variation(
        name="quick_jit", what="only the quick compiler (C1)", jvm_options="-XX:TieredStopAtLevel=1"
    ),
    Variation(name="parallel_gc", what="the parallel collector", jvm_options="-XX:+UseParallelGC"),
)


def _beside(variation: Variation) -> str:
    """Return the name of the shipped run that belongs to a variation."""
    return f"{SHIPPED.name}_beside_{variation.name}"


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    runs = WarmRuns(context, "settings")
    with ExitStack() as stack:

        def worker(name: str, jvm_options: str) -> Worker:
            options = f"{runs.settings[_JVM_OPTIONS]} {jvm_options}".strip()
            return stack.enter_context(runs.worker(name, {**runs.settings, _JVM_OPTIONS: options}))

        common = worker("shipped", "")

        def pair(variation: Variation) -> list[Side]:
            own = variation.jvm_options
            by = worker(variation.name, own) if own else common
            beside = replace(SHIPPED, name=_beside(variation))
            return [
                Side(name=each.name, what=each.what, run=_run(runs, each, worker_of))
                for each, worker_of in ((variation, by), (beside, common))
            ]

        yield Setup(
            sides=[side for variation in VARIATIONS for side in pair(variation)],
            data=runs.data,
            warm_ups=1,
        )


def _run(runs: WarmRuns, variation: Variation, by: Worker) -> Callable[[int], Metrics]:
    def landing(folder: Path) -> LandPipeline:
        return runs.pipeline(
            folder,
            session=variation.session,
            kafka=variation.kafka,
            records_per_task=variation.records_per_task,
        )

    return lambda repetition: runs.run(by, landing, variation.name, repetition)


BENCHMARKS = [
    Benchmark(
        name="settings",
        title="Effect of each shipped setting: one change at a time",
        ratios=[
            Ratio(over=each.name, under=_beside(each), metric=metric)
            for metric in ("seconds", "cpu_seconds", "bytes")
            for each in VARIATIONS
        ],
        open=_open,
        records=500_000,
        full_records=2_000_000,
        in_short_form=False,
    ),
]

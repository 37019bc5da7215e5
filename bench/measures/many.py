"""Many small pipelines due at once, whole processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.clock import run_process
from bench.context import Context, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.kafka import RECORD_BYTES, fill_topic, make_topic
from bench.tables import verified
from bench.whole_runs import PARTITIONS, SEARCH_PATH, counted_java, program

RECORDS = 1_000
"""New records of each pipeline in each repetition."""


class _ManyRuns:
    """Pipelines with a topic each, and a lakehouse for each way to run them.

    Args:
        context: Context of the run; `records` is the number of new records of all pipelines
            together in a repetition.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._home = context.home / "many"
        self._specs = self._home / "pipelines"
        self._fed: int | None = None
        self._total = 0
        self.pipelines = [f"many_{n:02}" for n in range(max(2, context.records // RECORDS))]
        for name in self.pipelines:
            write_spec(self._specs, name, name, context.conf)
            make_topic(context, name, PARTITIONS)
        self._java_home, self._java_calls = counted_java(self._home)

    def one_by_one(self, repetition: int) -> Metrics:
        """Measure one command for each pipeline."""
        self._feed(repetition)
        return self._ingested("apart", [[name] for name in self.pipelines])

    def one_application(self, repetition: int) -> Metrics:
        """Measure one command for all pipelines, and the marginal cost of one more pipeline."""
        self._feed(repetition)
        alone = self._ingested("alone", [self.pipelines[:1]])
        together = self._ingested("together", [self.pipelines])
        more = len(self.pipelines) - 1
        marginal = {
            f"marginal_{time}": (together[time] - alone[time]) / more
            for time in ("seconds", "cpu_seconds")
        }
        return {**together, "alone_seconds": alone["seconds"], **marginal}

    def _feed(self, repetition: int) -> None:
        if self._fed == repetition:
            return
        self._fed = repetition
        for name in self.pipelines:
            fill_topic(self._context, name, RECORDS)
        self._total += RECORDS

    def _ingested(self, lakehouse: str, commands: Sequence[Sequence[str]]) -> dict[str, float]:
        """Run `tidemark ingest` with each of these lists of names, one after the other."""
        self._java_calls.write_text("")
        place = self._home / lakehouse
        sums: Counter[str] = Counter()
        for names in commands:
            command = [program("tidemark"), "ingest", *names, "--master", self._context.master]
            watch = run_process(command, self._home / "run.log", self._environ(place))
            sums.update(watch.metrics())
        started = len(self._java_calls.read_text().splitlines())
        held = [
            verified(str(place / "bronze" / name), self._total)
            for names in commands
            for name in names
        ]
        return {**sums, "jvms": started, "records": sum(each["records"] for each in held)}

    def _environ(self, lakehouse: Path) -> dict[str, str]:
        return {
            **self._context.environ(lakehouse, self._specs),
            "JAVA_HOME": str(self._java_home),
            "PATH": SEARCH_PATH,
        }


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    runs = _ManyRuns(context)
    yield Setup(
        sides=[
            Side(
                name="one_application",
                what="tidemark ingest with all names: one Spark application",
                run=runs.one_application,
            ),
            Side(
                name="one_by_one",
                what="tidemark ingest for each name, one after the other",
                run=runs.one_by_one,
            ),
        ],
        data={
            "pipelines": len(runs.pipelines),
            "new_records_of_each_in_each_repetition": RECORDS,
            "record_bytes": RECORD_BYTES,
            "partitions_of_each": PARTITIONS,
            "content": "appended to existing tables; one warm-up run is not measured",
            "marginal_seconds": "(one_application - one pipeline alone) / (pipelines - 1)",
        },
        warm_ups=1,
    )


BENCHMARKS = [
    Benchmark(
        name="many",
        title="Many small pipelines due at once, whole processes",
        ratios=[
            Ratio(over="one_application", under=None, metric="marginal_seconds", at_most=1.5),
            Ratio(over="one_application", under="one_by_one", metric="seconds"),
            Ratio(over="one_application", under="one_by_one", metric="cpu_seconds"),
            Ratio(over="one_application", under="one_by_one", metric="jvms"),
        ],
        open=_open,
        records=5 * RECORDS,
        full_records=20 * RECORDS,
        repetitions=2,
        full_repetitions=3,
    ),
]

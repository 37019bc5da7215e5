"""P8: memory of the driver, for a small plan and for a plan with a hundred times the records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark

from bench.context import Context
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.probes import probe
from bench.warm_runs import WarmRuns
from bench.worker import LandPipeline, local_network

FACTOR = 100
RECORD_BYTES = 10
MASTER = "local-cluster[1,2,2048]"
"""The executor has a separate JVM, so the JVM of the driver contains only the driver."""


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    spark_home = _spark_home(context.home / "spark")
    sides = {
        "one": WarmRuns(
            replace(context, records=max(1, context.records // FACTOR)),
            "one",
            record_bytes=RECORD_BYTES,
        ),
        "hundred": WarmRuns(context, "hundred", record_bytes=RECORD_BYTES),
    }
    yield Setup(
        sides=[_side(context, name, runs, spark_home) for name, runs in sides.items()],
        data={**{name: runs.data for name, runs in sides.items()}, "master": MASTER},
    )


def _side(context: Context, name: str, runs: WarmRuns, spark_home: Path) -> Side:
    by = _NewDriver(home=context.home, settings=runs.settings, spark_home=spark_home)
    return Side(
        name=name,
        what=f"plan and land {runs.data['records']:,} records, with a new driver each time",
        run=lambda n: runs.run(by, runs.pipeline, name, n),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewDriver:
    """Lands in a new driver process."""

    home: Path
    settings: Mapping[str, str]
    spark_home: Path

    def land(self, landing: LandPipeline) -> Metrics:
        gc_log = self.home / "gc.log"
        options = f"{self.settings['spark.driver.extraJavaOptions']} -Xlog:gc:file={gc_log}"
        settings = {
            **self.settings,
            **local_network(),
            "spark.master": MASTER,
            "spark.executor.memory": "2g",
            "spark.driver.extraJavaOptions": options,
        }
        return probe(
            self.home,
            "land",
            [landing.pipeline, json.dumps(settings), str(gc_log)],
            {**landing.environ, "SPARK_HOME": str(self.spark_home)},
        )


def _spark_home(folder: Path) -> Path:
    """Return a folder with links to the installed Spark; a cluster's executors work below it."""
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        # A cluster that ran from the installed folder has left its folder `work` there.
        if each.name != "work":
            (folder / each.name).symlink_to(each)
    return folder


BENCHMARKS = [
    Benchmark(
        name="driver_memory",
        title="P8: memory of the driver at a hundredth of the records and at all of them",
        ratios=[
            Ratio(over="hundred", under="one", metric="heap_mb", at_most=1.1),
            Ratio(over="hundred", under="one", metric="peak_mb", at_most=1.1),
            Ratio(over="hundred", under="one", metric="jvm_mb"),
        ],
        open=_open,
        records=5_000_000,
        full_records=100_000_000,
        repetitions=2,
        full_repetitions=2,
    ),
]

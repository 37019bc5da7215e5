"""The resources of a run of benchmarks: a broker, a folder, and apps."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.frame import Benchmark, Progress
from tidemark.app.app import App
from tidemark.app.connections import LOCAL_CONNECTION, connection_variable, kafka_connection
from tidemark.local.broker import home_broker

PROJECT = Path(__file__).resolve().parents[1]
HOME = PROJECT / ".tidemark" / "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The resources and sizes of one benchmark.

    Attributes:
        home: Folder of this run; removed at its end.
        bootstrap: The run's broker.
        master: Spark master of every side.
        records: Number of records.
        repetitions: Number of measured repetitions.
        progress: Called with each line of progress.
        conf: Spark settings of Tidemark's pipelines, which override the shipped settings.
    """

    home: Path
    bootstrap: str
    master: str
    records: int
    repetitions: int
    progress: Progress
    conf: Mapping[str, str] = field(default_factory=dict)

    def sized_for(
        self, benchmark: Benchmark, *, full: bool, records: int | None, repetitions: int | None
    ) -> Context:
        """Return a copy with the sizes of one benchmark, which the given numbers override."""
        usual = benchmark.full_records if full else benchmark.records
        often = benchmark.full_repetitions if full else benchmark.repetitions
        return replace(self, records=records or usual, repetitions=repetitions or often)

    def app(self, lakehouse: Path, pipelines: Path) -> App:
        """Return an app with these tables and specs, on the run's broker, with shipped settings."""
        return App.from_environment(self.environ(lakehouse, pipelines))

    def environ(self, lakehouse: Path, pipelines: Path) -> dict[str, str]:
        """Return the environment variables of `app`, for other processes."""
        return {
            "TIDEMARK_PROJECT": str(PROJECT),
            "TIDEMARK_HOME": str(self.home),
            "TIDEMARK_LAKEHOUSE": str(lakehouse),
            "TIDEMARK_PIPELINES": str(pipelines),
            connection_variable(LOCAL_CONNECTION): kafka_connection(self.bootstrap),
        }


@contextmanager
def opened(
    home: Path, *, master: str, progress: Progress, conf: Mapping[str, str] | None = None
) -> Iterator[Context]:
    """Start a broker in a new folder below `home`; at the end, always stop it and remove both."""
    home.mkdir(parents=True, exist_ok=True)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=home))
    broker = home_broker(App.from_environment({"TIDEMARK_HOME": str(run)}).layout)
    try:
        progress("starting a broker")
        yield Context(
            home=run,
            bootstrap=broker.start().bootstrap,
            master=master,
            records=0,
            repetitions=0,
            progress=progress,
            conf=conf or {},
        )
    finally:
        broker.stop()
        shutil.rmtree(run, ignore_errors=True)


def write_spec(folder: Path, name: str, topic: str, spark: Mapping[str, str], **more: Any) -> None:
    """Write the spec of a pipeline that reads a topic from its beginning.

    Args:
        folder: The folder of specs.
        name: The pipeline.
        topic: Its topic.
        spark: Its Spark settings.
        more: Other keys of the spec; missing keys have their default values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"name": name, "topic": topic, "schedule": "@once", "start": "earliest"}
    # JSON is YAML.
    (folder / f"{name}.yaml").write_text(json.dumps({**spec, "spark": dict(spark), **more}))

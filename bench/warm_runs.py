"""Landings in warm Spark sessions over one full topic, each into a table of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.context import Context, write_spec
from bench.frame import Metrics
from bench.kafka import RECORD_BYTES, fill_topic, make_topic
from bench.tables import verified
from bench.worker import Landing, LandPipeline, Worker, local_network, started

PARTITIONS = 6


class WarmRuns:
    """One topic full of records, and one pipeline over it.

    Args:
        context: The run's surroundings; `records` is what the topic gets.
        name: Name of topic, pipeline and tables.

    Attributes:
        settings: Spark settings of the pipeline, as shipped.
        data: What is read, for the report.
    """

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._name = name
        self._specs, self._tables = context.home / "pipelines", context.home / "tables"
        make_topic(context, name, PARTITIONS)
        context.say(f"producing {context.records:,} records of {RECORD_BYTES} B")
        fill_topic(context, name, context.records)
        write_spec(self._specs, name, name, context.conf)
        app = context.app(self._tables, self._specs)
        self.settings: Mapping[str, str] = dict(app.spark_settings(app.spec(name)))
        self.data: Mapping[str, Any] = {
            "records": context.records,
            "record_bytes": RECORD_BYTES,
            "partitions": PARTITIONS,
            "content": "random capital letters without a key, spread evenly",
        }

    def worker(self, name: str, settings: Mapping[str, str]) -> AbstractContextManager[Worker]:
        """A process with a session of these settings, on the master that every side gets."""
        self._context.say(f"starting the session of {name}")
        placed = {**settings, "spark.master": self._context.master, **local_network()}
        return started(name, placed, self._context.home / f"{name}.log")

    def table(self, folder: Path) -> str:
        """The table that a landing below this folder makes."""
        return str(folder / "bronze" / self._name)

    def pipeline(self, folder: Path, **changes: Any) -> LandPipeline:
        """Tidemark's own landing, with what `LandPipeline` may have changed."""
        return LandPipeline(
            environ=self._context.environ(folder, self._specs),
            pipeline=self._name,
            requested_by=f"bench:{self._name}",
            **changes,
        )

    def run(
        self, by: Worker, landing: Callable[[Path], Landing], name: str, repetition: int
    ) -> Metrics:
        """Land the whole topic in a new table, verify that, and remove it."""
        folder = self._tables / f"{name}{repetition}"
        try:
            metrics = by.land(landing(folder))
            held = verified(self.table(folder), self._context.records)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        per_second = self._context.records / metrics["seconds"]
        return {**metrics, "records_per_second": per_second, **held}

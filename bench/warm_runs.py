"""Landings of one full topic in warm Spark sessions, each into a new table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench.context import Context, write_spec
from bench.frame import Metrics
from bench.kafka import RECORD_BYTES, fill_topic, grow_topic, make_topic
from bench.tables import verified
from bench.worker import Landing, LandPipeline, Worker, local_network, started
from tidemark.app import App

PARTITIONS = 6


_Own = TypeVar("_Own", bound=Landing)
_Taken = TypeVar("_Taken", bound=Landing, contravariant=True)


class Lander(Protocol[_Taken]):
    """Executes landings: a `Worker`, or an object that starts a process for each landing."""

    def land(self, landing: _Taken) -> Metrics:
        """Execute a landing, and return its metrics, at least `seconds`."""


class WarmRuns:
    """One topic full of records, and one pipeline over it.

    Args:
        context: Context of the run; `records` is the number of records of the topic.
        name: Name of topic, pipeline and tables.
        record_bytes: Size of a record's value.
        first_share: Share of the records that the first partition holds, 1 / PARTITIONS or more.

    Attributes:
        settings: Spark settings of the pipeline, as shipped.
        data: Description of the topic, for the report.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        *,
        record_bytes: int = RECORD_BYTES,
        first_share: float = 1 / PARTITIONS,
    ) -> None:
        self._context = context
        self._name = name
        self._specs, self._tables = context.home / "pipelines", context.home / "tables"
        context.progress(f"producing {context.records:,} records of {record_bytes} B")
        # The first partition also gets its share of the evenly spread records.
        spread = round(context.records * (1 - first_share) * PARTITIONS / (PARTITIONS - 1))
        make_topic(context, name, 1)
        if spread < context.records:
            fill_topic(context, name, context.records - spread, record_bytes)
        grow_topic(context, name, PARTITIONS)
        fill_topic(context, name, spread, record_bytes)
        write_spec(self._specs, name, name, context.conf)
        app = context.app(self._tables, self._specs)
        self.settings: Mapping[str, str] = dict(app.engines.submit_settings(app.spec(name)))
        self.data: Mapping[str, Any] = {
            "records": context.records,
            "record_bytes": record_bytes,
            "partitions": PARTITIONS,
            "content": "random capital letters without a key",
            "first_partition_holds": self._first_share(app),
        }

    def _first_share(self, app: App) -> float:
        spec = app.spec(self._name)
        watermarks = app.pipeline(spec.ref).watermarks.topic_watermarks(
            spec.topic, spec.isolation_level
        )
        return round(watermarks.partitions[0].end / self._context.records, 3)

    def worker(self, name: str, settings: Mapping[str, str]) -> AbstractContextManager[Worker]:
        """Return a process with a session of these settings, on the master of all sides."""
        self._context.progress(f"starting the session of {name}")
        placed = {**settings, "spark.master": self._context.master, **local_network()}
        return started(name, placed, self._context.home / f"{name}.log")

    def table(self, folder: Path) -> str:
        """Return the path of the table that a landing below this folder creates."""
        return str(folder / "bronze" / self._name)

    def pipeline(self, folder: Path, **changes: Any) -> LandPipeline:
        """Return a landing by Tidemark, with other values for attributes of `LandPipeline`."""
        return LandPipeline(
            environ=self._context.environ(folder, self._specs),
            pipeline=self._name,
            requested_by=f"bench:{self._name}",
            **changes,
        )

    def run(
        self, by: Lander[_Own], landing: Callable[[Path], _Own], name: str, repetition: int
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

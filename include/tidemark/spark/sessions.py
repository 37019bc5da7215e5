"""Spark sessions for the plans of one run, on either engine."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL_SETTINGS: Mapping[str, str] = {
    # Timestamps have the same meaning for every time zone of the driver.
    "spark.sql.session.timeZone": "UTC",
    # Delta reads its own log with this many tasks; the default of 50 suits huge tables.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "8",
    # 8 bytes; Spark's default is INT96 with 12 bytes, which Parquet deprecates.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # If a merge has few changes, Spark hashes them instead of sorting all keys of the table. The
    # limit is for the compressed shuffle files of one partition. The hash table of each core is a
    # few times larger.
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "8m",
    # Spark hashes nothing if this size is above the limit.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
    # Sizes of files that OPTIMIZE combines and writes; Delta's default of 1 GB suits huge tables.
    "spark.databricks.delta.optimize.minFileSize": str(100 * 2**20),
    "spark.databricks.delta.optimize.maxFileSize": str(100 * 2**20),
}
"""Settings of SQL on both engines."""

PLANS_PER_CORE = 2
"""A small plan waits for brokers and the disk about as long as it computes."""


class Sessions(Protocol):
    """Provides the sessions of one run.

    Attributes:
        write_options: Options for writing Parquet files, in addition to the session's settings.
    """

    @property
    def write_options(self) -> Mapping[str, str]: ...

    def shared(self) -> SparkSession:
        """Return the session that the plans of the run share."""

    def own(self) -> SparkSession:
        """Return a new session, for settings of a single commit."""

    def plans_at_once(self) -> int:
        """Return how many plans the run lands at the same time."""


class ApplicationSessions:
    """Sessions of this process's Spark application, which spark-submit has configured."""

    write_options: Mapping[str, str] = {}

    def shared(self) -> SparkSession:
        """Return the application's session; the first call starts the application."""
        return open_application()

    def own(self) -> SparkSession:
        """Return a second session of the application."""
        return self.shared().newSession()

    def plans_at_once(self) -> int:
        """Return two plans for each core of the application."""
        return PLANS_PER_CORE * int(self.shared().sparkContext.defaultParallelism)


def open_application(
    name: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process's Spark application; start the application if needed.

    Args:
        name: Name of the application; None for the name that spark-submit set.
        settings: Settings for processes without spark-submit, such as tests and benchmarks.
    """
    from pyspark.sql import SparkSession

    # spark-submit sets this for its jobs; without it PySpark uses the first python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    named = {} if name is None else {"spark.app.name": name}
    for key, value in {**named, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def has_driver_jvm() -> bool:
    """Return whether sessions of this process have the driver's JVM, and with it a SparkContext.

    On a Spark Connect server they have neither.
    """
    from pyspark.sql import is_remote

    return not is_remote()


def disable_value_logging() -> None:
    """Stop PySpark from logging the values of failed computations, until the process ends."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def use_scheduler_pool(session: SparkSession, pool: str) -> None:
    """Give this thread's jobs a fair share of the executors, even if other jobs have more tasks.

    On a Spark Connect server this has no effect: its allocation file defines one pool for all
    sessions.
    """
    if has_driver_jvm():
        session.sparkContext.setLocalProperty("spark.scheduler.pool", pool)

"""Spark's OPTIMIZE of a Delta table: of the newest version, or of one that was loaded before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSED = "DELTA_CONCURRENT_"


def optimize(spark: SparkSession, uri: str | Path) -> bool:
    """Run `OPTIMIZE`. Returns whether it committed; False if Delta refused its commit."""
    return _committed(lambda: spark.sql(f"OPTIMIZE delta.`{uri}`").collect())


def stale_optimize(spark: SparkSession, uri: str | Path) -> Callable[[], bool]:
    """Load the newest version for an `OPTIMIZE`, which the returned function then runs.

    The command `OPTIMIZE` does the same: it loads a version, and passes it to this executor.
    """
    # `Any`, because these classes exist only in the JVM.
    jvm: Any = spark._jvm
    none = jvm.scala.Option.empty()
    empty = getattr(getattr(jvm.scala.collection.immutable, "List$"), "MODULE$").empty()
    delta = jvm.org.apache.spark.sql.delta
    session = spark._jsparkSession
    snapshot = delta.DeltaLog.forTable(session, str(uri)).update(False, none, none)
    context = delta.commands.DeltaOptimizeContext(none, none, none, none, False)
    executor = delta.commands.OptimizeExecutor(
        session, snapshot, none, empty, empty, False, context
    )
    return lambda: _committed(executor.optimize)


def _committed(step: Callable[[], object]) -> bool:
    try:
        step()
    except (Py4JJavaError, PySparkException) as failed:
        if _REFUSED not in str(failed):
            raise
        return False
    return True

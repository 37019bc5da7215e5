"""Reading a plan with Spark: exactly its ranges from Kafka, into files beside the table's."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.adapters.spark import parquet
from tidemark.adapters.spark.failures import root_cause
from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.plan import Plan, PlannedRange
from tidemark.errors import EngineFailed, KafkaRefused, SetupError
from tidemark.ports import Clock
from tidemark.storage import folder_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)

_REFUSALS = {
    f"org.apache.kafka.common.errors.{name}Exception"
    for name in (
        "TopicAuthorization",
        "GroupAuthorization",
        "ClusterAuthorization",
        "SaslAuthentication",
        "SslAuthentication",
    )
}


class SparkSink:
    """Writes plans to files in the folder of one bronze table, which is there already.

    Args:
        session: Spark, with the Kafka source on its class path.
        uri: The bronze table.
        kafka_options: Options of Spark's Kafka source (adapters/kafka/options.py).
        now: The clock that `ingested_at` is read from, once for each landing.
    """

    def __init__(
        self,
        session: SparkSession,
        uri: str,
        kafka_options: Mapping[str, str],
        now: Clock,
    ) -> None:
        self._session = session
        self._uri = uri
        self._kafka_options = kafka_options
        self._now = now

    def write(self, plan: Plan, records_per_task: int) -> list[DataFile]:
        """Read the plan's ranges into files of a new folder, one for each task that found a record.

        Args:
            plan: The plan.
            records_per_task: Most offsets that one task reads; longer ranges are split (S12).

        Raises:
            KafkaRefused: The brokers do not let the reader read.
            SetupError: The table's storage cannot be used from Python.
            EngineFailed: Spark gave up.
        """
        operation = f"reading plan {plan.sequence} of pipeline {plan.pipeline!r}"
        files, table = self._storage()
        name = plan_folder(plan.sequence, uuid4())
        # A share of the executors for each plan, however many tasks it has. Spark keeps this by
        # thread.
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", plan.pipeline)
        try:
            read = self._with_provenance(self._read(plan, records_per_task), plan)
            read.write.parquet(f"{self._uri}/{name}")
            return parquet.written(files, table, name)
        except (PySparkException, Py4JError, OSError, ValueError) as failure:
            # No commit will refer to it; if that fails too, maintenance takes it.
            with suppress(OSError):
                files.delete_dir(f"{table}/{name}")
            refusal = _kafka_refusal(failure)
            if refusal:
                raise KafkaRefused(operation=operation, reason=refusal) from failure
            raise EngineFailed(operation=operation, reason=root_cause(failure)) from failure

    def _storage(self) -> tuple[FileSystem, str]:
        try:
            return folder_of(self._uri)
        except (OSError, ValueError) as unknown:
            raise SetupError(
                subject="the table's storage cannot be used from Python",
                needed="a path, or a URI that PyArrow and delta-rs both know",
                seen=f"{self._uri}: {unknown}",
                advice="see docs/clusters.md, Storage",
            ) from unknown

    def _read(self, plan: Plan, records_per_task: int) -> DataFrame:
        """Spark's Kafka source takes one range for each partition; a further one is a new read."""
        rounds: list[dict[int, PlannedRange]] = []
        for planned in plan.ranges:
            for taken in rounds:
                if planned.partition not in taken:
                    taken[planned.partition] = planned
                    break
            else:
                rounds.append({planned.partition: planned})
        frames = [self._read_round(plan, taken, records_per_task) for taken in rounds]
        return reduce(DataFrame.unionAll, frames)

    def _read_round(
        self, plan: Plan, ranges: Mapping[int, PlannedRange], records_per_task: int
    ) -> DataFrame:
        topic = plan.topic
        return (
            self._session.read.format("kafka")
            .options(**self._kafka_options)
            # The plan's own: its end was planned with it, and the spec may say another by now.
            # fence: reader-has-plans-isolation-level
            .option("kafka.isolation.level", plan.isolation_level.value)
            .option("assign", json.dumps({topic: sorted(ranges)}))
            .option("startingOffsets", _offsets(topic, {p: r.start for p, r in ranges.items()}))
            .option("endingOffsets", _offsets(topic, {p: r.end for p, r in ranges.items()}))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")  # fence: reader-fails-on-data-loss
            .option("maxRecordsPerPartition", records_per_task)
            .load()
        )

    def _with_provenance(self, records: DataFrame, plan: Plan) -> DataFrame:
        return records.select(
            "key",
            "value",
            "headers",
            "topic",
            "partition",
            "offset",
            "timestamp",
            F.col("timestampType").alias("timestamp_type"),
            F.lit(plan.topic_id).alias("topic_id"),
            F.lit(plan.sequence).cast("bigint").alias("plan_sequence"),
            F.lit(self._now()).alias("ingested_at"),
        )


def _offsets(topic: str, by_partition: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(p): offset for p, offset in sorted(by_partition.items())}})


def _kafka_refusal(failure: Exception) -> str | None:
    """What Kafka's client said, if the brokers' no is the reason; None for all other failures."""
    # PySpark keeps the Java exception of what it knows by name, Py4J of all else.
    cause = getattr(failure, "_origin", None) or getattr(failure, "java_exception", None)
    while cause is not None:
        if cause.getClass().getName() in _REFUSALS:
            return str(cause.getMessage())
        cause = cause.getCause()
    return None

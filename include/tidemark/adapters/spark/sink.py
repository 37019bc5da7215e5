"""Landing a plan with Spark: exactly its ranges from Kafka, one transaction into Delta."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import reduce

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.adapters.spark.exclusive import exclusive
from tidemark.core.plan import Plan, PlannedRange
from tidemark.errors import EngineFailed, KafkaRefused
from tidemark.ports import Clock

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


class SparkDeltaSink:
    """Appends plans to one bronze table, which is there already.

    Args:
        session: Spark, with Delta and the Kafka source on its class path.
        uri: The bronze table.
        kafka_options: Options of Spark's Kafka source (adapters/kafka/options.py).
        records_per_task: Most offsets that one task reads; longer ranges are split (S12).
        now: The clock that `ingested_at` is read from, once for each landing.
    """

    def __init__(
        self,
        session: SparkSession,
        uri: str,
        kafka_options: Mapping[str, str],
        records_per_task: int,
        now: Clock,
    ) -> None:
        self._session = session
        self._uri = uri
        self._kafka_options = kafka_options
        self._records_per_task = records_per_task
        self._now = now

    def land(self, plan: Plan) -> None:
        """Read the plan's ranges and append them under the plan's transaction.

        Raises:
            KafkaRefused: The brokers do not let the reader read.
            EngineFailed: Spark gave up.
        """
        # A share of the executors for each plan, however many tasks it has. Spark keeps this by
        # thread.
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", plan.pipeline)
        try:
            rows = self._with_provenance(self._read(plan), plan)
            with exclusive(self._uri):
                (
                    rows.write.format("delta")
                    .mode("append")
                    .option("txnAppId", plan.app_id)
                    .option("txnVersion", plan.sequence)
                    .option("userMetadata", plan.commit_metadata())
                    .save(self._uri)
                )
        except (PySparkException, Py4JError) as failure:
            operation = f"landing plan {plan.sequence} of pipeline {plan.pipeline!r}"
            refusal = _kafka_refusal(failure)
            if refusal:
                raise KafkaRefused(operation=operation, reason=refusal) from failure
            raise EngineFailed(operation=operation, reason=_root_cause(failure)) from failure

    def _read(self, plan: Plan) -> DataFrame:
        """Spark's Kafka source takes one range for each partition; a further one is a new read."""
        rounds: list[dict[int, PlannedRange]] = []
        for planned in plan.ranges:
            for taken in rounds:
                if planned.partition not in taken:
                    taken[planned.partition] = planned
                    break
            else:
                rounds.append({planned.partition: planned})
        frames = [self._read_round(plan, taken) for taken in rounds]
        return reduce(DataFrame.unionAll, frames)

    def _read_round(self, plan: Plan, ranges: Mapping[int, PlannedRange]) -> DataFrame:
        topic = plan.topic
        return (
            self._session.read.format("kafka")
            .options(**self._kafka_options)
            # The plan's own: its end was planned with it, and the spec may say another by now.
            .option("kafka.isolation.level", plan.isolation_level.value)
            .option("assign", json.dumps({topic: sorted(ranges)}))
            .option("startingOffsets", _offsets(topic, {p: r.start for p, r in ranges.items()}))
            .option("endingOffsets", _offsets(topic, {p: r.end for p, r in ranges.items()}))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .option("maxRecordsPerPartition", self._records_per_task)
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


def _root_cause(failure: Exception) -> str:
    """The last cause's first line: what a person looks for in a Java stack trace."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1] if causes else lines[0] if lines else type(failure).__name__)[:500]

"""Landing a plan with Spark: exactly its ranges from Kafka, one transaction into Delta."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import reduce
from typing import NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.types import StructType

from tidemark.core.plan import Plan, PlannedRange
from tidemark.errors import EngineFailed, ForeignTable, KafkaRefused
from tidemark.ports import Clock

log = logging.getLogger(__name__)

BRONZE = """
    key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>,
    topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT,
    topic_id STRING, plan_sequence BIGINT, ingested_at TIMESTAMP
"""
"""A bronze row: all that Kafka keeps of a record (S4), where it came from, and who landed it."""

_TABLE_PROPERTIES: Mapping[str, str] = {
    # Only what a reader prunes by, and what tells a file's range (delta/data_log.py).
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp,plan_sequence",
}
_OWNER = "tidemark.pipeline"
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
_NOT_EMPTY = {"DELTA_MISSING_DELTA_TABLE", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"}
"""What Delta calls a folder of other files, by whether it noticed before or after trying."""


class SparkDeltaSink:
    """Appends plans to one bronze table.

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
            ForeignTable: The target is not a bronze table of this pipeline.
            KafkaRefused: The brokers do not let the reader read.
            EngineFailed: Spark gave up.
        """
        try:
            self._ensure_table(plan.pipeline)
            rows = self._with_provenance(self._read(plan), plan)
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
        frames = [self._read_round(plan.topic, taken) for taken in rounds]
        return reduce(DataFrame.unionAll, frames)

    def _read_round(self, topic: str, ranges: Mapping[int, PlannedRange]) -> DataFrame:
        return (
            self._session.read.format("kafka")
            .options(**self._kafka_options)
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

    def _ensure_table(self, pipeline: str) -> None:
        from delta.tables import DeltaTable

        if not DeltaTable.isDeltaTable(self._session, self._uri):
            self._create(pipeline)
        table = DeltaTable.forPath(self._session, self._uri)
        detail = table.detail().select("properties").first()
        owner = (detail["properties"] if detail else {}).get(_OWNER)
        if owner != pipeline:
            self._refuse(f"the table property {_OWNER} is {owner!r}, not {pipeline!r}")
        present = {field.name: field.dataType for field in table.toDF().schema}
        for field in StructType.fromDDL(BRONZE):
            if field.name not in present:
                self._refuse(f"it has no column {field.name}")
            # The simple form names nested fields and types, and not what may be null.
            found, wanted = present[field.name].simpleString(), field.dataType.simpleString()
            if found != wanted:
                self._refuse(f"its column {field.name} is {found}, not {wanted}")

    def _create(self, pipeline: str) -> None:
        from delta.tables import DeltaTable

        table = DeltaTable.createIfNotExists(self._session).location(self._uri)
        table = table.addColumns(StructType.fromDDL(BRONZE)).property(_OWNER, pipeline)
        for name, value in _TABLE_PROPERTIES.items():
            table = table.property(name, value)
        try:
            table.execute()
        except PySparkException as failure:
            if DeltaTable.isDeltaTable(self._session, self._uri):
                log.info("table made by another driver pipeline=%s uri=%s", pipeline, self._uri)
            elif failure.getCondition() in _NOT_EMPTY:
                self._refuse("a folder with files in it that are no Delta table")
            else:
                raise
        else:
            log.info("created table pipeline=%s uri=%s", pipeline, self._uri)

    def _refuse(self, difference: str) -> NoReturn:
        raise ForeignTable(target=self._uri, difference=difference)


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

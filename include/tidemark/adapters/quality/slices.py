"""A landed slice as a DataFrame, and the figures that the built-in checks look at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its name everywhere

from tidemark.adapters.quality.suite import Suite
from tidemark.core.quality import SliceExpectation, SliceRef
from tidemark.core.quality_checks import RangeFigures, TopKey
from tidemark.errors import Problem, SuiteError

_KEY_SHOWN = 40
_PLANNED = "array<struct<topic_id: string, partition: int, start: bigint, end: bigint>>"


def read_slice(spark: SparkSession, ref: SliceRef) -> DataFrame:
    """The rows of one plan in one version of its data table, with the bronze columns."""
    return (
        spark.read.format("delta")
        .option("versionAsOf", ref.table_version)
        .load(ref.table)
        .where(F.col("plan_sequence") == ref.plan_sequence)
    )


def with_columns(rows: DataFrame, suite: Suite) -> DataFrame:
    """Add the columns that a suite is written on.

    These are `key_text` and `value_text` (the bytes read as UTF-8), and the suite's own
    expressions, each of which may use the columns before it.

    Raises:
        SuiteError: Spark cannot make sense of an expression.
    """
    rows = rows.withColumns(
        {"key_text": F.col("key").cast("string"), "value_text": F.col("value").cast("string")}
    )
    problems = []
    for name, expression in suite.columns.items():
        try:
            rows = rows.withColumn(name, F.expr(expression))
        except (AnalysisException, ParseException) as error:
            problems.append(
                Problem(
                    file=suite.file,
                    key=f"meta.tidemark.columns.{name}",
                    expected="a Spark SQL expression over a slice's columns",
                    found=str(error).strip().splitlines()[0],
                )
            )
    if problems:
        raise SuiteError(problems=tuple(problems))
    return rows


def range_figures(rows: DataFrame, expected: Sequence[SliceExpectation]) -> list[RangeFigures]:
    """Figures by planned range, and of the rows outside all of them, in one pass.

    Different offsets are counted exactly and without sorting or collecting them: each 32,768
    neighbouring offsets set bits in one bitmap of 4 KiB, and set bits are counted.

    Args:
        rows: A slice with the bronze columns.
        expected: What was planned; ranges of one partition do not overlap.
    """
    # Not from Python values: executors would start Python for them, which they need not have.
    ranges = json.dumps([asdict(one) for one in expected])
    planned = rows.sparkSession.range(1).select(F.inline(F.from_json(F.lit(ranges), _PLANNED)))
    return [
        RangeFigures(**row.asDict())
        for row in _figures(_by_bitmap(_in_ranges(rows, planned))).collect()
    ]


def top_key(rows: DataFrame) -> TopKey:
    """The key that most rows have; the smaller one if two are equally frequent."""
    first = (
        rows.where(F.col("key").isNotNull())
        .groupBy("key")
        .agg(F.count("*").alias("records"))
        .orderBy(F.col("records").desc(), F.col("key"))
        .select(F.substring(F.col("key").cast("string"), 1, _KEY_SHOWN).alias("key"), "records")
        .head()
    )
    return TopKey(key=None, records=0) if first is None else TopKey(**first.asDict())


def _in_ranges(rows: DataFrame, planned: DataFrame) -> DataFrame:
    """Each row with the start of the planned range that it lies in, null for none."""
    row, plan = rows.alias("row"), F.broadcast(planned).alias("plan")
    inside = (
        (F.col("row.topic_id") == F.col("plan.topic_id"))
        & (F.col("row.partition") == F.col("plan.partition"))
        & (F.col("row.offset") >= F.col("plan.start"))
        & (F.col("row.offset") < F.col("plan.end"))
    )
    return (
        row.join(plan, inside, "left")
        .select(
            "row.topic_id",
            "row.partition",
            "plan.start",
            "row.offset",
            F.col("row.key").isNull().alias("null_key"),
            F.col("row.value").isNull().alias("null_value"),
            (
                F.col("row.timestamp").isNull()
                | (F.col("row.timestamp_type") == -1)
                | (F.unix_micros("row.timestamp") < 0)
            ).alias("no_timestamp"),
            (F.unix_micros("row.timestamp") - F.unix_micros("row.ingested_at")).alias(
                "micros_ahead"
            ),
        )
        .withColumn("micros_ahead", F.expr("if(no_timestamp, null, micros_ahead)"))
    )


def _by_bitmap(rows: DataFrame) -> DataFrame:
    return rows.groupBy(
        "topic_id", "partition", "start", F.bitmap_bucket_number("offset").alias("bucket")
    ).agg(
        F.count("*").alias("records"),
        F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position("offset"))).alias("distinct"),
        F.count_if("null_key").alias("null_keys"),
        F.count_if("null_value").alias("null_values"),
        F.count_if("no_timestamp").alias("no_timestamps"),
        F.max("micros_ahead").alias("latest"),
        F.min("micros_ahead").alias("earliest"),
    )


def _figures(buckets: DataFrame) -> DataFrame:
    counts = ("records", "distinct", "null_keys", "null_values", "no_timestamps")
    return (
        buckets.groupBy("topic_id", "partition", "start")
        .agg(
            *(F.sum(name).alias(name) for name in counts),
            F.max("latest").alias("latest"),
            F.min("earliest").alias("earliest"),
        )
        .select(
            "topic_id",
            "partition",
            "start",
            *counts,
            (F.col("latest") / 1_000_000).alias("seconds_ahead"),
            (-F.col("earliest") / 1_000_000).alias("oldest_seconds_behind"),
        )
    )

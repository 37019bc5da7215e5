"""A landed batch as a DataFrame, with the columns that the rules of a suite use."""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its name everywhere

from tidemark.quality.check_results import BatchRef
from tidemark.quality.suite import Suite
from tidemark.spec.errors import Problem, SpecError


def read_batch(spark: SparkSession, ref: BatchRef) -> DataFrame:
    """Return the rows of one plan in one version of its data table, with the bronze columns."""
    return (
        spark.read.format("delta")
        .option("versionAsOf", ref.table_version)
        .load(ref.table)
        .where(F.col("plan_sequence") == ref.plan_sequence)
    )


def with_columns(rows: DataFrame, suite: Suite) -> DataFrame:
    """Return the rows with the columns that the rules of a suite use.

    These are `key_text` and `value_text` (the bytes decoded as UTF-8), and the suite's own
    expressions. An expression may use the columns before it. Raises `SpecError` for expressions
    that Spark refuses.
    """
    rows = rows.withColumns(
        {"key_text": F.col("key").cast("string"), "value_text": F.col("value").cast("string")}
    )
    problems = []
    for name, expression in suite.columns.items():
        try:
            with_column = rows.withColumn(name, F.expr(expression))
            # A Spark Connect server analyses an expression only when the schema is read.
            _ = with_column.schema
            rows = with_column
        except (AnalysisException, ParseException) as error:
            problems.append(
                Problem(
                    file=suite.file,
                    key=f"meta.tidemark.columns.{name}",
                    expected="a Spark SQL expression over the columns of a batch",
                    found=str(error).strip().splitlines()[0],
                )
            )
    if problems:
        raise SpecError.of_suite(tuple(problems))
    return rows

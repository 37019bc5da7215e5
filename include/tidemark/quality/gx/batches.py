"""A landed slice as a DataFrame, with the columns that a suite is written on."""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  its name everywhere

from tidemark.quality.check_results import BatchRef
from tidemark.quality.errors import SuiteError
from tidemark.quality.gx.suite import Suite
from tidemark.spec.errors import Problem


def read_batch(spark: SparkSession, ref: BatchRef) -> DataFrame:
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
            wider = rows.withColumn(name, F.expr(expression))
            # A Spark Connect server analyses an expression only when the schema is read.
            _ = wider.schema
            rows = wider
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

"""A peer: one stream that appends, validates with Great Expectations and merges by key.

With SPARK_REMOTE in the environment the stream runs on a Spark Connect server.
"""

import os
import sys

os.environ["GX_ANALYTICS_ENABLED"] = "False"

import great_expectations as gx
import great_expectations.expectations as gxe
from great_expectations.data_context.types.base import ProgressBarsConfig
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

bootstrap, topic, appended, merged, checkpoint, *settings = sys.argv[1:]

SCHEMA = "quote_id STRING, ticker STRING, price DOUBLE, currency STRING, event_time TIMESTAMP"
RULES = [
    gxe.ExpectColumnValuesToNotBeNull(column="quote_id"),
    gxe.ExpectColumnValuesToBeBetween(column="price", min_value=0, strict_min=True),
    gxe.ExpectColumnValuesToMatchRegex(column="key", regex="^[A-Z]{1,8}$"),
    gxe.ExpectColumnValuesToNotBeNull(column="event_time"),
    gxe.ExpectColumnValuesToMatchRegex(column="currency", regex="^[A-Z]{3}$"),
]


def land(batch: DataFrame, _: int) -> None:
    """Append a batch, validate its values, and merge the newest value of each key."""
    spark = batch.sparkSession
    batch.persist()
    batch.write.format("delta").mode("append").save(appended)
    values = batch.select(
        F.col("key").cast("string").alias("key"),
        "partition",
        "offset",
        F.from_json(F.col("value").cast("string"), SCHEMA).alias("value"),
    ).select("key", "partition", "offset", "value.*")
    validate(values)
    newest = Window.partitionBy("key").orderBy(F.desc("offset"))
    last = values.withColumn("place", F.row_number().over(newest)).where("place = 1").drop("place")
    if os.path.exists(merged):
        last.createOrReplaceTempView("last")
        spark.sql(
            f"MERGE INTO delta.`{merged}` t USING last s ON t.key = s.key "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    else:
        last.write.format("delta").save(merged)
    batch.unpersist()


def validate(values: DataFrame) -> None:
    """Fail if a rule does not hold."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_spark("rows", persist=False).add_dataframe_asset("quotes")
    suite = context.suites.add(gx.ExpectationSuite(name="quotes", expectations=RULES))
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": values})
    result = batch.validate(suite)
    if not result.success:
        raise ValueError(f"rules do not hold: {result}")


spark = SparkSession.builder.appName("validated-stream").getOrCreate()
for setting in settings:
    key, _, value = setting.partition("=")
    spark.conf.set(key, value)
(
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    # By default a stream begins at the end.
    .option("startingOffsets", "earliest")
    .load()
    .writeStream.foreachBatch(land)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
spark.stop()

"""A peer: Structured Streaming with availableNow, as a spark-submit script of its own."""

import sys

from pyspark.sql import SparkSession

bootstrap, topic, path, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("available-now").getOrCreate()
(
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    # By default a stream begins at the end.
    .option("startingOffsets", "earliest")
    .load()
    .writeStream.format("delta")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start(path)
    .awaitTermination()
)
spark.stop()

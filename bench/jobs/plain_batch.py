"""A peer: the batch read that a user would write, as a spark-submit script of its own."""

import sys

from pyspark.sql import SparkSession

bootstrap, topic, path, starting, ending = sys.argv[1:]
spark = SparkSession.builder.appName("plain-batch").getOrCreate()
(
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .option("startingOffsets", starting)
    .option("endingOffsets", ending)
    .load()
    .write.format("delta")
    .mode("append")
    .save(path)
)
spark.stop()

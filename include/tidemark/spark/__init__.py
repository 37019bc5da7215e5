"""What runs Spark: spark-submit, or a Spark Connect server."""

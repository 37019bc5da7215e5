"""The two engines of Spark jobs: spark-submit, and a Spark Connect server."""

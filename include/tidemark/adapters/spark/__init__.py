"""Spark: settings of every job, landing a plan, running jobs under spark-submit."""

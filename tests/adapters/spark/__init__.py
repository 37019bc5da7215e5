"""What Spark writes."""

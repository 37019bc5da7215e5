"""Tidemark: Kafka into Delta Lake, in scheduled batches of explicit offset ranges."""

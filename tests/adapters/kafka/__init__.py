"""Kafka through librdkafka."""

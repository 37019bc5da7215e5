"""Kafka: marks and topic ids, connections for both clients, the sample producer."""

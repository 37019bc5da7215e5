"""Access to Kafka by librdkafka."""

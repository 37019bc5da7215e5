"""The embedded broker: a real Apache Kafka as processes of this machine."""

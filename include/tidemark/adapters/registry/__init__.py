"""Schema registries with Confluent's API, by the client of confluent-kafka."""

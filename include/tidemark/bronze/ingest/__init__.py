"""Planning and execution of offset ranges from Kafka into bronze tables."""

"""Delta tables without Spark, by delta-rs: the control table, data tables' logs, counts."""

"""Reports about pipelines, and maintenance of tables."""

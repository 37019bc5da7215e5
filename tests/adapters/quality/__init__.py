"""Quality checks by Great Expectations."""

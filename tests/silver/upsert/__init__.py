"""Tests of `tidemark.silver.upsert`."""

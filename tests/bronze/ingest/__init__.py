"""Tests of `tidemark.bronze.ingest`."""

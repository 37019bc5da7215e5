"""Tests of `tidemark.ingest`."""

"""Tests of `tidemark.upsert`."""

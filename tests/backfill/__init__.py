"""Tests of `tidemark.backfill`."""

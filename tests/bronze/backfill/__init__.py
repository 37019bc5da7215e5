"""Tests of `tidemark.bronze.backfill`."""

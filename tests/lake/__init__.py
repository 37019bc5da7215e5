"""Tests of `tidemark.lake`."""

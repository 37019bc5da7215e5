"""Tests of `tidemark.maintenance`."""

"""Tests of `tidemark.ops.maintenance`."""

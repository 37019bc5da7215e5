"""Tests of `tidemark.ops.report`."""

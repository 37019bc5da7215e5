"""Tests of `tidemark.ops`."""

"""Tests of `tidemark.delta`."""

"""Tests of `tidemark.cli`."""

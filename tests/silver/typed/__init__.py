"""Tests of `tidemark.silver.typed`."""

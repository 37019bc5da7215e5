"""Tests of `tidemark.typed`."""

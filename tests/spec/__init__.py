"""Tests of `tidemark.spec`."""

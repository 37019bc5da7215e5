"""Tests of `tidemark.bronze`."""

"""Tests of `tidemark.quality`."""

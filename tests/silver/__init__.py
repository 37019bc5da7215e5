"""Tests of `tidemark.silver`."""

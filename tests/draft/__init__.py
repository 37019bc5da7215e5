"""Tests of `tidemark.draft`."""

"""Tests of `tidemark.typed.formats`."""

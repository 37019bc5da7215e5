"""Tests of `tidemark.silver.typed.formats`."""

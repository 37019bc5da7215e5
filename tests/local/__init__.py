"""Tests of `tidemark.local`."""

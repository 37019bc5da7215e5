"""Tests of `tidemark.dev`."""

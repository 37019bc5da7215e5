"""Tests of `tidemark.report`."""

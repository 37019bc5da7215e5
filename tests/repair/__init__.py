"""Tests of `tidemark.repair`."""

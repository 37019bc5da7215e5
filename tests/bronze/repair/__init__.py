"""Tests of `tidemark.bronze.repair`."""

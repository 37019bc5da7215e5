"""Tests mirror include/tidemark; conftest.py and support/ contain the shared code."""

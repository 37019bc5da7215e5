"""Tests mirror include/tidemark; what they share is in conftest.py and support/."""

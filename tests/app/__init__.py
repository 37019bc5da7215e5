"""Tests of `tidemark.app`."""

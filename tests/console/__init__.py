"""Tests of tidemark.console."""

"""Tests of `tidemark.kafka`."""

"""Tests of `tidemark.quality.gx`."""

"""Tests of tidemark.spark."""

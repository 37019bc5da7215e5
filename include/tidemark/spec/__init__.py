"""Specs of pipelines, and the layout of their tables."""

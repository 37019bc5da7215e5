"""Adapters against the real systems they speak to."""

"""Requests of offset ranges, planned in chunks."""

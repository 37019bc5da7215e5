"""Compaction and removal of unreferenced files."""

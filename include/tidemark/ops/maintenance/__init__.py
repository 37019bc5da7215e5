"""Maintenance of tables: compaction, and removal of unreferenced files."""

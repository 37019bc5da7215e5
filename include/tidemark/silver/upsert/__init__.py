"""Upsert tables: one row for each key."""

"""Typed tables: decoded keys and values, schemas and quarantine."""

"""Profiles of records, and drafts of specs, schemas and suites from them."""

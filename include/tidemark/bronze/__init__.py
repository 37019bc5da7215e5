"""The bronze table: ingest, backfill, repair."""

"""Exactly once under faults: crashes, zombies, hostile logs, failing brokers, fences removed."""

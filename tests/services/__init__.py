"""Use cases over in-memory adapters."""

"""Tables that are derived from the bronze table."""

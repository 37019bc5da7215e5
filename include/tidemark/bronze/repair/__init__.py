"""Repairs and operator decisions: abandon, undo, accepted loss, rewind and rebuild."""

"""Decisions about history: abandon, undo, accepted loss, rewind and rebuild."""

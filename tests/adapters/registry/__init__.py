"""Schema registries."""

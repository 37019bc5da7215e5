"""Quality checks and publication."""

"""Pure values and rules."""

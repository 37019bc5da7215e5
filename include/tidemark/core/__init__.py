"""The protocol as values and rules, with the standard library alone."""

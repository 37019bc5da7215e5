"""Pure values and rules: the standard library only, no I/O, no clock."""

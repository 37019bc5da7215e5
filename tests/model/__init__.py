"""Model checking of the commit protocol: every interleaving of a few, and random histories."""

"""Model checking of the commit protocol: interleavings of a few actors, and random histories."""

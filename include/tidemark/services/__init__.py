"""Use cases: the order of steps, and what to do when a step turns out to be done already."""

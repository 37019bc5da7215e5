"""The parts of a pipeline as one value, and the steps of a run."""

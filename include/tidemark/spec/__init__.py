"""What a pipeline is: its specification and the layout of its tables."""

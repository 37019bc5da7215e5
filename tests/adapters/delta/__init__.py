"""Delta tables through delta-rs."""

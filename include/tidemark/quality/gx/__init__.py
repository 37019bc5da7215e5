"""All code that imports Great Expectations."""

"""Diagrams of the documentation, drawn from text: `python -m docs.diagrams` writes them."""

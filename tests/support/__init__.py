"""What tests share: readers that know nothing of Tidemark."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
"""This checkout."""

"""Builders, services and readers that tests share."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
"""This checkout."""

"""Errors of maintenance."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError


@dataclass(kw_only=True, eq=False)
class RetentionTooShort(TerminalError):
    """The requested retention is shorter than readers and time travel may need.

    Attributes:
        table: The table's display name.
        requested_hours: The requested retention, hours.
        minimum_hours: The shortest retention that the table allows, hours.
    """

    table: str
    requested_hours: int
    minimum_hours: int

    problem = "The retention is too short for the files of {table}; no file was removed."
    expected = "at least {minimum_hours} hours"
    actual = "{requested_hours} hours"
    fix = (
        "Pass --keep-hours {minimum_hours} or more, or set the table property "
        "delta.deletedFileRetentionDuration."
    )

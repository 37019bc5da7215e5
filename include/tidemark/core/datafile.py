"""A file of rows in a table's folder, which no commit has added yet."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FOLDER = re.compile(r"plan-(\d+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def plan_folder(sequence: int, attempt: object) -> str:
    """Name of the folder that one attempt at a plan writes its files to.

    Args:
        sequence: The plan.
        attempt: A UUID: another attempt at the same plan may be alive.
    """
    return f"plan-{sequence}-{attempt}"


def plan_of_folder(folder: str) -> int | None:
    """The plan whose files a folder has; None if it is no such folder."""
    named = _FOLDER.fullmatch(folder)
    return int(named[1]) if named else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One task's rows.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        modified_ms: When it was written, milliseconds since 1970.
        partition: Partition of all its rows; None if they are of several.
        records: Number of rows, at least 1.
        first, last: Least and greatest offset.
        earliest_ms, latest_ms: Least and greatest timestamp; None if a row has none.
        quarantined: Whether its rows could not be decoded, and are for the quarantine table.
    """

    path: str
    size: int
    modified_ms: int
    partition: int | None
    records: int
    first: int
    last: int
    earliest_ms: int | None
    latest_ms: int | None
    quarantined: bool = False

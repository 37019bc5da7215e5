"""A Parquet file in a table's folder that no commit has added yet."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FOLDER = re.compile(r"plan-(\d+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def plan_folder(sequence: int, attempt: object) -> str:
    """Return the name of the folder for the files of one attempt at a plan.

    Args:
        sequence: Plan number.
        attempt: A UUID, because another attempt at the same plan may still be running.
    """
    return f"plan-{sequence}-{attempt}"


def plan_of_folder(folder: str) -> int | None:
    """Return the number of the plan that a folder belongs to; None for any other folder."""
    named = _FOLDER.fullmatch(folder)
    return int(named[1]) if named else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file with the rows of one task.

    Attributes:
        path: Path relative to the table.
        size: Size in bytes.
        modified_ms: Time of the last write, milliseconds since 1970.
        partition: Partition of all rows; None if the rows belong to several partitions.
        records: Number of rows, at least 1.
        first, last: Lowest and highest offset.
        earliest_ms, latest_ms: Lowest and highest timestamp; None if a row has no timestamp.
        quarantined: Whether the file contains undecodable rows, for the quarantine table.
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

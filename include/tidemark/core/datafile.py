"""A file of rows in a table's folder, which no commit has added yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One task's rows, of one partition.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        modified_ms: When it was written, milliseconds since 1970.
        partition: Partition of all its rows.
        records: Number of rows, at least 1.
        first, last: Least and greatest offset.
        earliest_ms, latest_ms: Least and greatest timestamp; None if a row has none.
    """

    path: str
    size: int
    modified_ms: int
    partition: int
    records: int
    first: int
    last: int
    earliest_ms: int | None
    latest_ms: int | None

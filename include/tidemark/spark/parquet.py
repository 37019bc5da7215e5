"""Describes the files that Spark has written, from their footers; reads no rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemark.core.datafile import DataFile
from tidemark.delta.storage import column_statistics, footers_of

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem
    from pyarrow.parquet import FileMetaData

_COLUMNS = ("partition", "offset", "timestamp")
"""Columns whose minimum and maximum a commit records."""


def single_partition_files(files: FileSystem, table: str, folder: str) -> list[DataFile]:
    """Return the files with rows in one folder of a table, and check that each has one partition.

    Args:
        files: File system of the table.
        table: The table's folder.
        folder: The folder, relative to the table.

    Raises:
        ValueError: A file has rows of several partitions, or the offsets of two files overlap.
    """
    found = data_files(files, table, folder)
    _check_disjoint(found)  # fence: files-have-disjoint-offsets
    return found


def data_files(files: FileSystem, table: str, folder: str) -> list[DataFile]:
    """Return the files with rows in one folder of a table, ordered by partition and offset.

    A compaction joins files that are adjacent in a commit, so the order keeps adjacent offsets in
    one file.
    """
    from pyarrow.fs import FileSelector

    found = files.get_file_info(FileSelector(f"{table}/{folder}"))
    parquet = [info for info in found if info.base_name.endswith(".parquet")]
    footers = footers_of(files, [info.path for info in parquet])
    made = [
        _data_file(folder, info, footer)
        for info, footer in zip(parquet, footers, strict=True)
        if footer.num_rows
    ]
    return sorted(
        made, key=lambda file: (-1 if file.partition is None else file.partition, file.first)
    )


def _data_file(folder: str, info: FileInfo, footer: FileMetaData) -> DataFile:
    def extremes(name: str) -> Sequence[int] | None:
        columns = column_statistics(footer, name)
        full = [each for each in columns if each and each.has_min_max and not each.null_count]
        if not full or len(full) < len(columns):
            return None
        return [end for each in full for end in (each.min_raw, each.max_raw)]

    partition, offset, timestamp = map(extremes, _COLUMNS)
    if partition is None or offset is None:
        raise ValueError(f"{info.base_name} has no statistics of partition and offset")
    return DataFile(
        path=f"{folder}/{info.base_name}",
        size=info.size,
        modified_ms=info.mtime_ns // 1_000_000,
        partition=partition[0] if len(set(partition)) == 1 else None,
        records=footer.num_rows,
        first=min(offset),
        last=max(offset),
        # Parquet stores microseconds.
        earliest_ms=min(timestamp) // 1000 if timestamp else None,
        latest_ms=max(timestamp) // 1000 if timestamp else None,
    )


def _check_disjoint(found: Sequence[DataFile]) -> None:
    """Refuse two files with overlapping offsets: the output of one task was counted twice."""
    for file in found:
        if file.partition is None:
            raise ValueError(f"{file.path} has rows of several partitions")
    for one, other in pairwise(found):
        if one.partition == other.partition and other.first <= one.last:
            raise ValueError(f"{one.path} and {other.path} have overlapping offsets")

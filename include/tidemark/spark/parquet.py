"""Files that Spark has written, as their footers tell of them; no row is read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemark.core.datafile import DataFile
from tidemark.lake.storage import column_statistics, footers_of

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem
    from pyarrow.parquet import FileMetaData

_COLUMNS = ("partition", "offset", "timestamp")
"""Those whose extremes a commit tells."""


def single_partition_files(files: FileSystem, table: str, folder: str) -> list[DataFile]:
    """The files with rows in one folder of a table, each of one partition.

    Args:
        files: Where the table is.
        table: The table's folder.
        folder: The folder, relative to it.

    Raises:
        ValueError: They are not files of single partitions whose offsets lie apart.
        OSError: They cannot be read.
    """
    made = data_files(files, table, folder)
    _check_apart(made)  # fence: files-have-disjoint-offsets
    return made


def data_files(files: FileSystem, table: str, folder: str) -> list[DataFile]:
    """The files with rows in one folder of a table, by partition and offset.

    A compaction joins files that stand beside each other in a commit: what it makes then holds
    offsets that lie together.

    Raises:
        ValueError: They do not tell what they hold.
        OSError: They cannot be read.
    """
    from pyarrow.fs import FileSelector

    found = files.get_file_info(FileSelector(f"{table}/{folder}"))
    named = [info for info in found if info.base_name.endswith(".parquet")]
    footers = footers_of(files, [info.path for info in named])
    made = [
        _data_file(folder, info, footer)
        for info, footer in zip(named, footers, strict=True)
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
        raise ValueError(f"{info.base_name} does not tell its partition and offsets")
    return DataFile(
        path=f"{folder}/{info.base_name}",
        size=info.size,
        modified_ms=info.mtime_ns // 1_000_000,
        partition=partition[0] if len(set(partition)) == 1 else None,
        records=footer.num_rows,
        first=min(offset),
        last=max(offset),
        # Parquet has microseconds.
        earliest_ms=min(timestamp) // 1000 if timestamp else None,
        latest_ms=max(timestamp) // 1000 if timestamp else None,
    )


def _check_apart(made: Sequence[DataFile]) -> None:
    """Refuse two neighbours with the same offsets: a task's output that was counted twice."""
    for file in made:
        if file.partition is None:
            raise ValueError(f"{file.path} is not of one partition")
    for one, other in pairwise(made):
        if one.partition == other.partition and other.first <= one.last:
            raise ValueError(f"{one.path} and {other.path} have the same offsets")

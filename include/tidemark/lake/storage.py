"""Where a table's files are and what they tell of themselves, for adapters that look into them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidemark.core.errors import SetupError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyarrow.parquet import FileMetaData, Statistics

_READ_AT_ONCE = 16
"""Footers: on an object store each is two requests that wait."""


def folder_of(uri: str) -> tuple[FileSystem, str]:
    """The file system of a table, and the table's folder in it.

    Raises:
        OSError, ValueError: PyArrow does not know, or cannot use, such a URI.
    """
    from pyarrow.fs import FileSystem

    # Hadoop's name for it.
    files, folder = FileSystem.from_uri(uri.replace("s3a://", "s3://", 1))
    return files, folder


def table_folder(uri: str) -> tuple[FileSystem, str]:
    """Return the result of `folder_of`, or raise a named error.

    Raises:
        SetupError: PyArrow does not support the URI.
    """
    try:
        return folder_of(uri)
    except (OSError, ValueError) as unknown:
        raise SetupError(
            subject="the table's storage cannot be used from Python",
            needed="a path, or a URI that PyArrow and delta-rs both know",
            seen=f"{uri}: {unknown}",
            advice="see docs/clusters.md, Storage",
        ) from unknown


def footers_of(files: FileSystem, paths: Sequence[str]) -> list[FileMetaData]:
    """What Parquet files tell of themselves, in their order; no row is read.

    Raises:
        OSError, ValueError: One cannot be opened, or is no such file.
    """
    import pyarrow.parquet as pq

    def footer_of(path: str) -> FileMetaData:
        with files.open_input_file(path) as source:
            return pq.read_metadata(source)

    with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
        return list(threads.map(footer_of, paths))


def column_statistics(footer: FileMetaData, path: str) -> list[Statistics | None]:
    """Statistics of a column by row group, None where there are none; empty without the column.

    Args:
        footer: The file's.
        path: The column, a dot before each field inside another.
    """
    numbers = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    if path not in numbers:
        return []
    groups = (footer.row_group(n) for n in range(footer.num_row_groups))
    return [group.column(numbers[path]).statistics for group in groups]

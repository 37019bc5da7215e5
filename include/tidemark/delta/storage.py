"""The file system of a table, and the footers of its Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidemark.core.errors import SetupError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyarrow.parquet import FileMetaData, Statistics

_CONCURRENT_READS = 16
"""Concurrent reads of footers; on an object store a footer takes two requests."""


def folder_of(uri: str) -> tuple[FileSystem, str]:
    """Return the file system of a table, and the table's folder in it; fails as PyArrow does."""
    from pyarrow.fs import FileSystem

    # `s3a` is Hadoop's scheme for S3.
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
            finding="PyArrow does not support the storage of the table.",
            needed="a path, or a URI that PyArrow and delta-rs both support",
            seen=f"{uri}: {unknown}",
            advice="See docs/how-to/storage.md.",
        ) from unknown


def footers_of(files: FileSystem, paths: Sequence[str]) -> list[FileMetaData]:
    """Read the footers of Parquet files, in their order, without rows."""
    import pyarrow.parquet as pq

    def footer_of(path: str) -> FileMetaData:
        with files.open_input_file(path) as source:
            return pq.read_metadata(source)

    with ThreadPoolExecutor(_CONCURRENT_READS) as threads:
        return list(threads.map(footer_of, paths))


def column_statistics(footer: FileMetaData, path: str) -> list[Statistics | None]:
    """Return the statistics of a column by row group; empty without the column.

    A row group without statistics gives None.

    Args:
        footer: The footer of a file.
        path: The column, with a dot before each nested field.
    """
    numbers = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    if path not in numbers:
        return []
    groups = (footer.row_group(n) for n in range(footer.num_row_groups))
    return [group.column(numbers[path]).statistics for group in groups]

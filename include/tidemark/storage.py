"""The folder of a table's files, for adapters that look into files themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def folder_of(uri: str) -> tuple[FileSystem, str]:
    """The file system of a table, and the table's folder in it.

    Raises:
        OSError, ValueError: PyArrow does not know, or cannot use, such a URI.
    """
    from pyarrow.fs import FileSystem

    # Hadoop's name for it.
    files, folder = FileSystem.from_uri(uri.replace("s3a://", "s3://", 1))
    return files, folder

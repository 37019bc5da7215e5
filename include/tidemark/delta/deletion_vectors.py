"""Deletion vectors: Delta's marks of deleted rows, mostly in files of their own.

Spark writes them to an upsert table whose spec enables them. Other programs may write them to any
table.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from deltalake import DeltaTable

from tidemark.delta.log_folders import LOG, commit_path

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_ASCII85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_PYTHON = str.maketrans(_Z85, _ASCII85)
"""From the alphabet of the Delta protocol to that of `base64.b85decode`."""
_ENCODED_UUID = 20
"""Length of an encoded UUID, at the end of `pathOrInlineDv`."""


def may_have_deletion_vectors(table: DeltaTable) -> bool:
    """Return whether files of a table may have rows that a deletion vector removes."""
    return "deletionVectors" in (table.protocol().reader_features or ())


def vector_path(descriptor: Mapping[str, Any] | None) -> str | None:
    """Return the path of the file with a deletion vector; None for a vector without a file.

    Args:
        descriptor: The field `deletionVector` of an action; None without a vector.

    Returns:
        The path as in the log: relative to the table, or absolute.
    """
    match descriptor:
        case {"storageType": "u", "pathOrInlineDv": str(encoded)}:
            folder, name = encoded[:-_ENCODED_UUID], encoded[-_ENCODED_UUID:]
            uuid = UUID(bytes=base64.b85decode(name.translate(_TO_PYTHON)))
            return "/".join(filter(None, (folder, f"deletion_vector_{uuid}.bin")))
        case {"storageType": "p", "pathOrInlineDv": str(path)}:
            return path
        case _:
            return None


def vector_paths(files: FileSystem, log: Iterable[str], newest: int) -> set[str] | None:
    """Return the paths of the deletion vectors to which the newest version of a table may refer.

    Args:
        files: The folder of the table.
        log: Paths of the files of its log.
        newest: The newest version that is known; the log may have later ones.

    Returns:
        Paths as in the log; some may be of earlier versions. None if they are unknown: a commit
        since the newest single-file checkpoint is missing, or this checkpoint has sidecar files.
    """
    found = [match for path in log if (match := _LOG_FILE.fullmatch(path))]
    checkpoints = {int(each["version"]) for each in found if each["kind"] == "checkpoint.parquet"}
    start = max(checkpoints, default=-1)
    commits = sorted(int(each["version"]) for each in found if each["kind"] == "json")
    later = [version for version in commits if version > start]
    # fence: files-of-unknown-vectors-stay
    if later != list(range(start + 1, max([*later, newest], default=start) + 1)):
        return None
    vectors = _of_checkpoint(files, start) if checkpoints else set()
    if vectors is None:
        return None
    for version in later:
        with files.open_input_stream(commit_path(version)) as source:
            vectors.update(vector for _, vector in files_in(source.read().decode()))
    return {vector for vector in vectors if vector is not None}


def files_in(commit: str) -> Iterator[tuple[str, str | None]]:
    """Yield the path of each file that a commit adds or removes, and its `vector_path`."""
    for line in commit.splitlines():
        for kind, action in json.loads(line).items() if line.strip() else ():
            if kind in ("add", "remove"):
                yield action["path"], vector_path(action.get("deletionVector"))


def _of_checkpoint(files: FileSystem, version: int) -> set[str | None] | None:
    """Return the `vector_path` of each file of a checkpoint; None if it has sidecar files."""
    import pyarrow.parquet as pq

    with files.open_input_file(f"{LOG}/{version:020}.checkpoint.parquet") as source:
        found = pq.ParquetFile(source).read(["add", "sidecar"])
    if "sidecar" in found.column_names and found["sidecar"].null_count < found.num_rows:
        return None
    added = found["add"].drop_null().to_pylist()
    return {vector_path(each.get("deletionVector")) for each in added}


_LOG_FILE = re.compile(rf"{LOG}/(?P<version>\d{{20}})\.(?P<kind>json|checkpoint\.parquet)")

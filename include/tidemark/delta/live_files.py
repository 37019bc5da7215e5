"""Files of a table's version: their paths and statistics."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from tidemark.core.offsets import Span, SpanSet
from tidemark.delta.deletion_vectors import may_have_deletion_vectors
from tidemark.delta.table_io import python_rows

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9_=./-]|%25)+")
"""Paths that delta-rs writes to a `remove` exactly as another commit wrote them to an `add`.

Delta compares the two as texts. delta-rs decodes a path of the log and encodes it again, which may
change characters outside this set.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A file of a version, without a deletion vector.

    Attributes:
        path: As in the log, percent-encoded.
        size: Bytes.
        modified_ms: As in the log, milliseconds since 1970.
        records: Number of rows; None without a count in the log.
        partition: Partition values by column.
        bounds: Statistics by column, under `null_count`, `min` and `max`.
    """

    path: str
    size: int
    modified_ms: int
    records: int | None
    partition: Mapping[str, str | None]
    bounds: Mapping[str, Mapping[str, Any]]

    def removal(self, deleted_ms: int, *, data_change: bool) -> RemoveAction:
        """The action that removes this file from the table.

        Args:
            deleted_ms: Time of the removal, milliseconds since 1970.
            data_change: False if other files of the commit hold the rows.
        """
        return RemoveAction(
            unquote(self.path),
            data_change=data_change,
            deletion_timestamp=deleted_ms,
            size=self.size,
            partition_values=dict(self.partition),
        )


def table_filesystem(uri: str) -> FileSystem:
    """The folder of a table, through the storage access of delta-rs."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(uri))


def write_file(files: FileSystem, path: str, content: bytes) -> None:
    """Write a small file to a folder of `table_filesystem`."""
    # Without a buffer for the whole content, PyArrow passes an object that delta-rs refuses.
    with files.open_output_stream(path, buffer_size=len(content) + 1) as stream:
        stream.write(content)


def live_files(table: DeltaTable) -> list[LiveFile]:
    """Files of the loaded version, oldest first.

    Leaves out files that delta-rs cannot remove by name: files with a deletion vector, and files
    with unusual characters in their path.
    """
    vectors: set[str] = set()
    if may_have_deletion_vectors(table):
        vectors = {unquote(uri) for batch in table.deletion_vectors() for uri in _uris(batch)}
    rows = python_rows(table.get_add_actions(flatten=False))
    found = [
        LiveFile(
            path=row["path"],
            size=row["size_bytes"],
            modified_ms=row["modification_time"],
            records=row.get("num_records"),
            partition={
                name: None if value is None else str(value)
                for name, value in (row.get("partition") or {}).items()
            },
            bounds={name: row.get(name) or {} for name in ("null_count", "min", "max")},
        )
        for row in rows
        if _PLAIN_PATH.fullmatch(row["path"])
        and not any(uri.endswith(unquote(row["path"])) for uri in vectors)
    ]
    return sorted(found, key=lambda file: (file.modified_ms, file.path))


def files_at(table: DeltaTable, spans: Mapping[int, SpanSet]) -> list[LiveFile]:
    """Return the live files that may have rows at some offsets, by their statistics."""

    def may_contain(file: LiveFile, partition: int, some: SpanSet) -> bool:
        least, most = file.bounds["min"], file.bounds["max"]
        if None in (*_range(least), *_range(most)):
            return True
        is_here = least["partition"] <= partition <= most["partition"]
        return is_here and some.overlap_size(Span(least["offset"], most["offset"] + 1)) > 0

    return [
        file
        for file in live_files(table)
        if any(may_contain(file, partition, some) for partition, some in spans.items())
    ]


def _range(bounds: Mapping[str, Any]) -> tuple[Any, Any]:
    return bounds.get("partition"), bounds.get("offset")


def unsupported_files(
    table: DeltaTable, live: Sequence[LiveFile]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Files of the loaded version that `live_files` leaves out: paths and partition values.

    Args:
        table: The table.
        live: What `live_files` returns for it.
    """
    removable = {file.path for file in live}
    return [
        (row["path"], row.get("partition") or {})
        for row in python_rows(table.get_add_actions(flatten=False))
        if row["path"] not in removable
    ]


def _uris(batch: Any) -> Sequence[str]:
    uris: Sequence[str] = batch.column("filepath").to_pylist()
    return uris


def merged_statistics(group: Sequence[LiveFile]) -> dict[str, Any]:
    """Merged statistics of some files, in the form of the Delta protocol.

    Leaves out columns without statistics in one of the files, and values other than numbers, texts,
    dates or times.
    """
    nulls, least, greatest = (
        [file.bounds[name] for file in group] for name in ("null_count", "min", "max")
    )
    return {
        "minValues": _merged(least, min),
        "maxValues": _merged(
            greatest, lambda one, other: max(_rounded_up(one), _rounded_up(other))
        ),
        "nullCount": _merged(nulls, lambda one, other: one + other),
    }


def subset_statistics(group: Sequence[LiveFile]) -> dict[str, Any]:
    """Column bounds that remain valid for a part of these rows; null counts would not."""
    return {name: each for name, each in merged_statistics(group).items() if name != "nullCount"}


def _rounded_up(value: Any) -> Any:
    """Return the last microsecond of a time's millisecond, as delta-rs reads statistics in ms."""
    if isinstance(value, datetime):
        return value.replace(microsecond=value.microsecond // 1000 * 1000 + 999)
    return value


def _merged(each: Sequence[Mapping[str, Any]], pick: Callable[[Any, Any], Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in each[0]:
        values = [bounds.get(name) for bounds in each]
        if all(isinstance(value, Mapping) for value in values):
            merged[name] = _merged([dict(value or {}) for value in values], pick)
        elif all(_is_bound(value) for value in values):
            merged[name] = _text(reduce(pick, values))
    return merged


def _is_bound(value: Any) -> bool:
    return isinstance(value, int | str | date) and not isinstance(value, bool)


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    return value.isoformat() if isinstance(value, date) else value

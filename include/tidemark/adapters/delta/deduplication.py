"""Removes copies of rows from a data table, which a compaction by another program may leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.adapters.delta.compaction import Compaction
from tidemark.adapters.delta.data_table import check_owner
from tidemark.adapters.delta.failures import named
from tidemark.adapters.delta.live_files import LiveFile, live_files, merged_bounds, storage_of
from tidemark.adapters.delta.rewriting import Rewrite, batches_of, write_rows
from tidemark.adapters.delta.rows import opened

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

_KEYS = ["topic_id", "partition", "offset", "plan_sequence"]
"""A plan lands each offset once, so rows that share these are copies of one row."""


class Deduplication:
    """Leaves one of the copies of each row of a data table.

    Args:
        uri: The table.
        pipeline: The pipeline whose table it must be.
    """

    def __init__(self, uri: str, pipeline: str) -> None:
        self._uri = uri
        self._pipeline = pipeline

    def run(self, *, dry_run: bool = False) -> int:
        """Rewrite the files with doubled rows without the copies. Returns the number of copies.

        Makes one commit, which fails if one of these files has left the table meanwhile.

        Args:
            dry_run: Only count the copies.

        Raises:
            ForeignTable: It is not the pipeline's table.
            CompactionConflict: Other commits removed these files; nothing was changed.
            EngineFailed: The rewrite failed, or its answer was lost.
        """
        table = opened(self._uri)
        if table is None:
            return 0
        check_owner(table, self._uri, self._pipeline)
        try:
            return self._without_copies(table, dry_run=dry_run)
        except (DeltaError, OSError, ValueError) as failed:
            raise named(failed, self._uri, "removing doubled rows") from failed

    def _without_copies(self, table: DeltaTable, *, dry_run: bool) -> int:
        files, live = storage_of(self._uri), live_files(table)
        copied, doubled = _doubled(files, live)
        copies = sum(count - 1 for count in doubled.values())
        if dry_run or not copies:
            return copies
        seen: set[tuple[object, ...]] = set()
        added = []
        for file in copied:
            bounds = merged_bounds([file])
            # Bounds remain valid without some rows; null counts do not.
            del bounds["nullCount"]
            new = write_rows(files, file, _once(batches_of(files, file), doubled, seen), bounds)
            added += [new] if new.records else []
        Compaction(self._uri).commit([Rewrite(replaced=tuple(copied), added=tuple(added))])
        return copies


def _doubled(
    files: FileSystem, live: Sequence[LiveFile]
) -> tuple[list[LiveFile], dict[tuple[object, ...], int]]:
    """Files with copied rows, and the number of copies of each row."""
    import pyarrow as pa

    parts = [
        pa.Table.from_batches([batch]).append_column("file", pa.array([number] * batch.num_rows))
        for number, file in enumerate(live)
        for batch in batches_of(files, file, _KEYS)
        if batch.num_rows
    ]
    if not parts:
        return [], {}
    rows = pa.concat_tables(part.select([*_KEYS, "file"]) for part in parts)
    counted = rows.group_by(_KEYS, use_threads=False).aggregate([("file", "count")]).to_pylist()
    doubled = {_key(row): row["file_count"] for row in counted if row["file_count"] > 1}
    held = {row["file"] for row in rows.to_pylist() if _key(row) in doubled} if doubled else set()
    return [file for number, file in enumerate(live) if number in held], doubled


def _key(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in _KEYS)


def _once(
    batches: Iterator[pa.RecordBatch],
    doubled: dict[tuple[object, ...], int],
    seen: set[tuple[object, ...]],
) -> Iterator[pa.RecordBatch]:
    """Rows without the already seen ones.

    Works in slices, because PyArrow cannot filter all column types that it can read.
    """
    for batch in batches:
        start = 0
        for number, row in enumerate(batch.select(_KEYS).to_pylist()):
            key = _key(row)
            if key in seen:
                yield batch.slice(start, number - start)
                start = number + 1
            elif key in doubled:
                seen.add(key)
        yield batch.slice(start)

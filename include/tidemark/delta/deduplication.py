"""Removes copies of rows from a data table, which a compaction by another program may leave.

The removal is committed as a compaction: readers of changes see no deleted rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidemark.delta.compaction import Compaction
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.duplicates import DuplicateSearch, numbered_batches, row_numbers, rows_within
from tidemark.delta.live_files import live_files, table_filesystem, unsupported_files
from tidemark.delta.rewriting import Rewrite, all_written, write_without
from tidemark.delta.table_checks import check_owner
from tidemark.delta.table_io import open_if_exists
from tidemark.delta.unreadable_files import translate_read_errors

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class DeduplicationResult:
    """The result of a deduplication.

    Attributes:
        rows: Copies of rows that were found, and removed unless it was a dry run.
        unread_files: Files of the table that were not searched: files with a deletion vector or
            with unusual characters in their path.
    """

    rows: int
    unread_files: int = 0


def deduplicate(uri: str, pipeline: str, *, dry_run: bool = False) -> DeduplicationResult:
    """Leave one of the copies of each row of a data table: rewrite the files with copies.

    Makes one commit, only if all of these files are still in the table. Otherwise it searches
    the new version.

    Args:
        uri: The table.
        pipeline: The pipeline whose table it must be.
        dry_run: Only count the copies.

    Raises:
        ForeignTable: It is not the pipeline's table.
        DuplicatesDiffer: Rows with one key are not copies; nothing was changed.
        UnreadableFile: A file of the table cannot be read; nothing was changed.
        TableConflict: Other commits removed the files in each try; nothing was changed.
    """
    with translate_read_errors(uri, "removing duplicate rows"):
        return retry_on_conflict(lambda: _without_copies(uri, pipeline, dry_run=dry_run))


def _without_copies(uri: str, pipeline: str, *, dry_run: bool) -> DeduplicationResult:
    table = open_if_exists(uri)
    if table is None:
        return DeduplicationResult(rows=0)
    check_owner(table, uri, pipeline)
    files, live = table_filesystem(uri), live_files(table)
    found = DuplicateSearch(files, live, pipeline).find()
    copies = DeduplicationResult(
        rows=sum(map(len, found.values())), unread_files=len(unsupported_files(table, live))
    )
    if dry_run or not copies.rows:
        return copies
    added = all_written(
        files,
        (
            write_without(files, live[number], partial(_without, rows=rows))
            for number, rows in found.items()
        ),
    )
    rewrite = Rewrite(
        replaced=tuple(live[number] for number in found),
        added=tuple(new for new in added if new.records),
    )
    Compaction(uri).commit([rewrite])
    return copies


def _without(batches: Iterator[pa.RecordBatch], rows: pa.Array) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for first, batch in numbered_batches(batches):
        removed = rows_within(rows, first, batch.num_rows)
        if len(removed):
            numbers = row_numbers(first, batch.num_rows)
            yield batch.filter(pc.invert(pc.is_in(numbers, value_set=removed)))
        else:
            yield batch

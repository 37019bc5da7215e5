"""Removes rows from files that delta-rs cannot rewrite, in one commit that may add files.

delta-rs cannot convert maps of structs to which a later schema added fields (see `widened_maps`).
This module copies the remaining rows of such a table, each file in its own schema. delta-rs
rewrites the files of all other tables, because it also supports files with deletion vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from tidemark.core.errors import SetupError
from tidemark.core.following import BatchOffsets
from tidemark.core.offsets import SpanSet, union_by_partition
from tidemark.delta.checked_commits import Change, commit_checked
from tidemark.delta.errors import TableConflict
from tidemark.delta.live_files import (
    LiveFile,
    files_at,
    live_files,
    table_filesystem,
    unsupported_files,
)
from tidemark.delta.rewriting import (
    Rewrite,
    all_written,
    committable,
    open_parquet,
    read_batches,
    removed_if_uncommitted,
    rewrite_actions,
    write_without,
)
from tidemark.delta.unreadable_files import translate_read_errors
from tidemark.delta.widened_maps import has_widened_maps

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

_PLACE = ("topic_id", "partition", "offset", "plan_sequence")


def check_rewritable(table: DeltaTable) -> None:
    """Raise `SetupError` if neither delta-rs nor this module can remove rows of a table."""
    if not has_widened_maps(table):
        return
    left_out = [path for path, _ in unsupported_files(table, live_files(table))]
    if left_out:  # fence: files-with-removed-rows-are-rewritable
        raise SetupError(
            finding=f"Rows of table {table.table_uri} cannot be removed: it has a map of structs.",
            needed="files with plain names and no deletion vectors",
            seen=", ".join(left_out[:3]) + (f" and {len(left_out) - 3} more" * bool(left_out[3:])),
            advice=f"Rewrite the files in Spark with OPTIMIZE delta.`{table.table_uri}` ZORDER BY "
            "(offset); then run the command again.",
        )


def remove_rows(
    table: DeltaTable,
    removed: BatchOffsets,
    change: Callable[[DeltaTable], Change],
    conflict: TableConflict,
) -> int:
    """Remove the rows of some plans at some offsets in one commit, right after a checked version.

    Args:
        table: The version whose rows are read.
        removed: The offsets of the rows.
        change: Returns the other changes of a commit that follows a version. Raises an error to
            refuse the commit, at least if rows have changed since `table`.
        conflict: The error if another commit removed files with these rows.

    Returns:
        The version of the commit.

    Raises:
        SetupError: See `check_rewritable`.
        UnreadableFile: A file cannot be read.
        CommitFailedError: Other commits preceded this one in every attempt.
    """
    check_rewritable(table)
    uri = table.table_uri
    storage = table_filesystem(uri)
    with translate_read_errors(uri, "rewriting rows"):
        rewrites = _rewrites(
            storage, files_at(table, union_by_partition(removed.values())), removed
        )

    def checked(newest: DeltaTable) -> Change:
        check_rewritable(newest)
        other = change(newest)
        live = {file.path for file in live_files(newest)}
        if len(committable(storage, live, rewrites)) < len(rewrites):
            raise conflict
        actions = [*rewrite_actions(rewrites, data_change=True), *other.actions]
        return replace(other, actions=actions, count=newest.version() + 1, is_needed=True)

    with removed_if_uncommitted(uri, rewrites):
        return commit_checked(uri, checked)


def _rewrites(
    storage: FileSystem, searched: Sequence[LiveFile], removed: BatchOffsets
) -> list[Rewrite]:
    """Write the rows of files that remain. Return the rewrites."""
    found = [(file, *_counts(storage, file, removed)) for file in searched]
    affected = [(file, kept) for file, leaving, kept in found if leaving]
    rows = partial(_kept, removed=removed)
    written = iter(
        all_written(
            storage, (write_without(storage, file, rows) for file, kept in affected if kept)
        )
    )
    return [
        Rewrite(replaced=(file,), added=(next(written),) if kept else ()) for file, kept in affected
    ]


def _counts(storage: FileSystem, file: LiveFile, removed: BatchOffsets) -> tuple[int, int]:
    """Return how many rows of a file to remove, and how many to keep."""
    rows = leaving = 0
    with open_parquet(storage, file) as source:
        names = [name for name in _PLACE if name in source.schema_arrow.names]
    for batch in read_batches(storage, file, names):
        rows += batch.num_rows
        leaving += _is_removed(batch, removed).true_count
    return leaving, rows - leaving


def _kept(batches: Iterator[pa.RecordBatch], removed: BatchOffsets) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for batch in batches:
        yield batch.filter(pc.invert(_is_removed(batch, removed)))


def _is_removed(batch: pa.RecordBatch, removed: BatchOffsets) -> pa.Array:
    """Return for each row whether to remove it. Columns that the batch lacks are null."""
    import pyarrow.compute as pc

    plans = _column(batch, "plan_sequence")
    of_plans = (
        pc.and_(
            pc.fill_null(pc.equal(plans, plan.sequence), False),
            at_offsets(batch, plan.topic_id, spans),
        )
        for plan, spans in removed.items()
    )
    return reduce(pc.or_, of_plans)


def at_offsets(batch: pa.RecordBatch, topic_id: str, spans: Mapping[int, SpanSet]) -> pa.Array:
    """Return for each row whether it is of an incarnation at some offsets."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    topics = pc.fill_null(pc.equal(_column(batch, "topic_id"), topic_id), False)
    partitions, offsets = (
        pc.fill_null(_column(batch, name), -1).to_numpy(zero_copy_only=False)
        for name in ("partition", "offset")
    )
    is_here = np.zeros(batch.num_rows, dtype=bool)
    for partition, some in spans.items():
        starts, ends = ([getattr(span, end) for span in some] for end in ("start", "end"))
        place = np.searchsorted(starts, offsets, "right") - 1
        is_within = (place >= 0) & (offsets < np.array([*ends, 0])[place])
        is_here |= is_within & (partitions == partition)
    # fence: rewritten-rows-of-other-incarnations-stay
    return pc.and_(pa.array(is_here), topics)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of a batch; nulls if the batch lacks it."""
    import pyarrow as pa

    if name in batch.schema.names:
        return batch.column(name)
    return pa.nulls(batch.num_rows, pa.string() if name == "topic_id" else pa.int64())

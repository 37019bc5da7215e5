"""Removes rows from files that delta-rs cannot rewrite, in one commit that may add files.

delta-rs cannot convert maps of structs to which a later schema added fields (see `widened_maps`).
This module copies the remaining rows of such a table, each file in its own schema. delta-rs
rewrites the files of all other tables, because it also supports files with deletion vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from deltalake import DeltaTable

from tidemark.core.errors import SetupError, TidemarkError
from tidemark.core.offsets import SpanSet
from tidemark.delta.checked_commits import Change, commit_checked
from tidemark.delta.live_files import LiveFile, live_files, table_filesystem, unsupported_files
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

RowFilter: TypeAlias = "Callable[[pa.RecordBatch], pa.Array]"
"""Returns for each row of a batch whether to remove it. Columns that the batch lacks are null."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRemoval:
    """The removal of some rows.

    Attributes:
        may_have: Returns the files of a version that may have the rows, by their statistics.
        is_removed: Selects the rows.
        conflict: Returns the error for a concurrent change of the rows, from its reason.
    """

    may_have: Callable[[DeltaTable], Sequence[LiveFile]]
    is_removed: RowFilter
    conflict: Callable[[str], TidemarkError]

    def commit(self, table: DeltaTable, change: Callable[[DeltaTable], Change]) -> tuple[int, int]:
        """Remove the rows in one commit, right after a version that was checked.

        Args:
            table: The version whose rows are read.
            change: Returns the other changes of a commit that follows a version. Raises an error
                to refuse the commit, at least if rows have changed since `table`.

        Returns:
            The number of removed rows, and the version of the commit; the newest version if there
            was nothing to commit.

        Raises:
            SetupError: See `check_rewritable`.
            UnreadableFile: A file cannot be read.
            CommitFailedError: Other commits preceded this one in every attempt.
        """
        check_rewritable(table)
        uri, searched = table.table_uri, self.may_have(table)
        storage, version = table_filesystem(uri), 0
        with translate_read_errors(uri, "rewriting rows"):
            rewrites, rows = self._rewrites(storage, searched)

        def checked(newest: DeltaTable) -> Change:
            nonlocal version
            check_rewritable(newest)
            other = change(newest)
            live = {file.path for file in live_files(newest)}
            if len(committable(storage, live, rewrites)) < len(rewrites):
                raise self.conflict("another commit removed files with rows to remove")
            actions = [*rewrite_actions(rewrites, data_change=True), *other.actions]
            version = newest.version() + bool(actions or other.is_needed)
            return replace(other, actions=actions)

        with removed_if_uncommitted(uri, rewrites):
            commit_checked(uri, checked)
        return rows, version

    def _rewrites(
        self, storage: FileSystem, searched: Sequence[LiveFile]
    ) -> tuple[list[Rewrite], int]:
        """Write the rows that remain. Return the rewrites, and the number of rows to remove."""
        found = [(file, *self._counts(storage, file)) for file in searched]
        affected = [(file, kept) for file, removed, kept in found if removed]
        written = iter(
            all_written(
                storage,
                (write_without(storage, file, self._kept) for file, kept in affected if kept),
            )
        )
        rewrites = [
            Rewrite(replaced=(file,), added=(next(written),) if kept else ())
            for file, kept in affected
        ]
        return rewrites, sum(removed for _, removed, _ in found)

    def _counts(self, storage: FileSystem, file: LiveFile) -> tuple[int, int]:
        """Return how many rows of a file to remove, and how many to keep."""
        rows = removed = 0
        with open_parquet(storage, file) as source:
            names = [name for name in _PLACE if name in source.schema_arrow.names]
        for batch in read_batches(storage, file, names):
            rows += batch.num_rows
            removed += self.is_removed(batch).true_count
        return removed, rows - removed

    def _kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        for batch in batches:
            yield batch.filter(pc.invert(self.is_removed(batch)))


def of_plan(sequence: int) -> RowFilter:
    """Return the filter for rows of a plan."""

    def is_removed(batch: pa.RecordBatch) -> pa.Array:
        import pyarrow.compute as pc

        return pc.fill_null(pc.equal(_column(batch, "plan_sequence"), sequence), False)

    return is_removed


def at_offsets(topic_id: str, spans: Mapping[int, SpanSet]) -> RowFilter:
    """Return the filter for rows of one incarnation at some offsets."""

    def is_removed(batch: pa.RecordBatch) -> pa.Array:
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

    return is_removed


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of a batch; nulls if the batch lacks it."""
    import pyarrow as pa

    if name in batch.schema.names:
        return batch.column(name)
    return pa.nulls(batch.num_rows, pa.string() if name == "topic_id" else pa.int64())

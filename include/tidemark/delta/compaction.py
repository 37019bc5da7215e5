"""Compaction of one Delta table: rewrites small files as fewer, in a commit without data change.

`DeltaTable.optimize.compact` of delta-rs is unsafe: two such compactions of one version both
commit, and every row is in the table twice. This module writes the files first. Then one commit
removes the replaced files, only if all of them are live in the version before it. See
docs/adr/0022-compaction-with-a-check.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tidemark.core.errors import SetupError
from tidemark.delta.checked_commits import COMMITS_TRIED, Change, commit_checked
from tidemark.delta.errors import TableConflict
from tidemark.delta.live_files import LiveFile, live_files, merged_statistics, table_filesystem
from tidemark.delta.rewriting import (
    NewFile,
    Rewrite,
    all_written,
    committable,
    open_parquet,
    plain_schema,
    read_batches,
    removed_if_uncommitted,
    rewrite_actions,
    write_rows,
)
from tidemark.delta.table_checks import check_features

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

TARGET_BYTES = 100 * 1024 * 1024
"""Size of compacted files of a table without the property `delta.targetFileSize`."""
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?")


class Compaction:
    """One compaction: `rewrite`, then `commit`. Both also raise errors of delta-rs and the system.

    Args:
        uri: The table.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def rewrite(self, partition: Mapping[str, str] | None = None) -> list[Rewrite]:
        """Write the rows of small files to larger files, which no version refers to yet.

        Args:
            partition: Partition values; compact only files of this partition.

        Raises:
            SetupError: The target size of the table cannot be parsed.
            TableAltered: delta-rs cannot commit to the table, because of its protocol.
        """
        table = DeltaTable(self._uri)
        check_features(table, self._uri)
        target = _target_bytes(table.metadata().configuration)
        wanted = (partition or {}).items()
        small = [
            file
            for file in live_files(table)
            if file.size < target and wanted <= file.partition.items()
        ]
        if len(small) < 2:
            return []
        files = table_filesystem(self._uri)
        groups = list(_groups(files, small, target))
        added = all_written(files, (_merged(files, group) for group in groups))
        return [
            Rewrite(replaced=tuple(group), added=(new,))
            for group, new in zip(groups, added, strict=True)
        ]

    def bytes_to_write(self) -> int:
        """Return the most bytes that `rewrite` writes for all partitions."""
        table = DeltaTable(self._uri)
        target = _target_bytes(table.metadata().configuration)
        return sum(file.size for file in live_files(table) if file.size < target)

    def commit(self, rewrites: Sequence[Rewrite]) -> int:
        """Replace files by their rewrites in one commit.

        Leaves out a rewrite if one of the files that it replaces has left the table. Returns the
        number of replaced files.

        Raises:
            TableConflict: No rewrite can be committed; nothing was changed.
        """
        try:
            return commit_checked(self._uri, lambda table: self._change(table, rewrites))
        except CommitFailedError as refused:
            raise TableConflict.of_files(
                self._uri, f"another commit was first, {COMMITS_TRIED} times"
            ) from refused

    def _change(self, table: DeltaTable, rewrites: Sequence[Rewrite]) -> Change:
        live = {file.path for file in live_files(table)}
        done = [each for each in rewrites if live.issuperset(each.added_paths)]
        ready = committable(table_filesystem(self._uri), live, rewrites)
        if rewrites and not done and not ready:
            raise TableConflict.of_files(
                self._uri,
                "the files to replace have left the table, or the new files are missing",
            )
        return Change(
            actions=rewrite_actions(ready, data_change=False),
            metadata=json.dumps({"compacted": sum(len(each.replaced) for each in ready)}),
            count=sum(len(each.replaced) for each in (*done, *ready)),
        )

    def run(self, partition: Mapping[str, str] | None = None) -> int:
        """Rewrite and commit. Returns the number of replaced files."""
        rewrites = self.rewrite(partition)
        with removed_if_uncommitted(self._uri, rewrites):
            return self.commit(rewrites)


def _merged(files: FileSystem, group: Sequence[LiveFile]) -> NewFile:
    rows = (batch for file in group for batch in read_batches(files, file))
    return write_rows(files, group[0], rows, merged_statistics(group))


def _groups(
    files: FileSystem, small: Sequence[LiveFile], target: int
) -> Iterator[Sequence[LiveFile]]:
    """Groups of files to merge: of one partition and one physical schema, up to the target size.

    Rows are copied unchanged, so a column that a file lacks is still null afterwards.
    """

    def kind(file: LiveFile) -> str:
        return repr(sorted(file.partition.items()))

    for _, same in groupby(sorted(small, key=kind), kind):
        group = list(same)
        if len(group) > 1:
            schemas: dict[str, list[LiveFile]] = {}
            for file in group:
                with open_parquet(files, file) as source:
                    schemas.setdefault(_schema_text(source), []).append(file)
            for alike in schemas.values():
                yield from _bins(alike, target)


def _bins(alike: Sequence[LiveFile], target: int) -> Iterator[Sequence[LiveFile]]:
    held: list[LiveFile] = []
    for file in (*alike, None):
        if file is not None and sum(each.size for each in held) + file.size <= target:
            held.append(file)
            continue
        if len(held) > 1:
            yield held
        held = [] if file is None else [file]


def _schema_text(source: pq.ParquetFile) -> str:
    text: str = plain_schema(source).to_string(show_field_metadata=True)
    return text


def _target_bytes(configuration: Mapping[str, str | None]) -> int:
    text = (configuration.get("delta.targetFileSize") or str(TARGET_BYTES)).strip().lower()
    found = _SIZE.fullmatch(text)
    if found is None:
        raise SetupError(
            finding="The target size of a table's files cannot be parsed.",
            needed="delta.targetFileSize in bytes, or with a unit such as 100mb",
            seen=repr(text),
            advice="Correct delta.targetFileSize with ALTER TABLE ... SET TBLPROPERTIES.",
        )
    return int(found[1]) << 10 * " kmgt".index(found[2] or " ")

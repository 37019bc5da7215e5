"""Finds unreadable files, and removes files from a table without reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake import DeltaTable

from tidemark.lake.checked_commits import Change, commit_checked
from tidemark.lake.delta_errors import is_delta_error, is_storage_error, tidemark_error
from tidemark.lake.errors import UnreadableFile
from tidemark.lake.live_files import LiveFile, live_files, table_filesystem, unsupported_files
from tidemark.lake.table_io import open_if_exists

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_BATCH_ROWS = 4_096


def files_with_plan(table: DeltaTable, sequence: int) -> tuple[list[LiveFile], list[LiveFile]]:
    """Files with rows of one plan alone, and files that may also contain other rows.

    Decides by the statistics. Compaction writes files of the second kind.
    """
    whole, mixed = [], []
    for file in live_files(table):
        least, most = (file.bounds[name].get("plan_sequence") for name in ("min", "max"))
        if least == most == sequence and file.records is not None:
            whole.append(file)
        elif least is None or most is None or least <= sequence <= most:
            mixed.append(file)
    return whole, mixed


def has_other_files_with_plan(table: DeltaTable, sequence: int) -> bool:
    """Whether rows of a plan may be in files that `remove_whole` does not remove."""
    return bool(unsupported_files(table, live_files(table)) or files_with_plan(table, sequence)[1])


def remove_whole_files(uri: str, sequence: int, metadata: str) -> int:
    """Remove the files with rows of one plan alone, in one commit, without reading them.

    Returns:
        The number of their rows.

    Raises:
        CommitFailedError: Another commit was first at every try.
    """

    def removal(table: DeltaTable) -> Change:
        whole, _ = files_with_plan(table, sequence)
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        return Change(
            actions=[file.removal(now_ms, data_change=True) for file in whole],
            metadata=metadata,
            count=sum(file.records or 0 for file in whole),
        )

    return commit_checked(uri, removal)


@contextmanager
def translate_read_errors(uri: str, operation: str) -> Iterator[None]:
    """Raise failures of reading or rewriting a table's files as named errors.

    Args:
        uri: The table.
        operation: The operation, in the form "compacting the table".

    Raises:
        UnreadableFile: A file of the table cannot be read.
        StorageRefused, StorageUnavailable, DeltaLogDamaged, EngineFailed: All other causes.
    """
    try:
        yield
    except Exception as failed:
        # PyArrow's errors are ValueErrors.
        if not (is_delta_error(failed) or isinstance(failed, ValueError)):
            raise
        if (table := open_if_exists(uri)) is not None:
            raise_if_unreadable(table, failed)
        raise tidemark_error(failed, uri, operation) from failed


def raise_if_unreadable(table: DeltaTable, failed: Exception) -> None:
    """Search for the file that made a read fail, unless the storage failed.

    Raises:
        UnreadableFile: The file is found.
    """
    if is_storage_error(failed):
        return
    text = str(failed)
    # First the files that the failure names; for text that is not UTF-8 it names none.
    files = sorted(live_files(table), key=lambda file: unquote(file.path) not in text)
    check_readable(table.table_uri, files)


def check_readable(uri: str, files: Iterable[LiveFile]) -> None:
    """Read files whole. Skips a file whose read the storage denies or fails.

    Raises:
        UnreadableFile: One of them cannot be read.
    """
    storage = table_filesystem(uri)
    for file in files:
        if reason := _fault(storage, file):
            first, last = (file.bounds[name].get("plan_sequence") for name in ("min", "max"))
            raise UnreadableFile(
                table=uri,
                file=unquote(file.path),
                first_plan=first,
                last_plan=last,
                reason=reason,
            )


def _fault(storage: FileSystem, file: LiveFile) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with (
            storage.open_input_file(unquote(file.path)) as source,
            pq.ParquetFile(source) as rows,
        ):
            for batch in rows.iter_batches(_BATCH_ROWS):
                # Also checks the encoding of text.
                batch.validate(full=True)
    except (pa.ArrowException, OSError) as failed:
        if is_storage_error(failed):
            return None
        return (str(failed).splitlines() or [repr(failed)])[0][:300]
    return None

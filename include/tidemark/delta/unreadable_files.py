"""Named errors for failed reads: finds the file of a table that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from deltalake import DeltaTable

from tidemark.core.texts import counted
from tidemark.delta.delta_errors import (
    is_delta_error,
    is_storage_error,
    tidemark_error,
    translate_delta_errors,
)
from tidemark.delta.errors import UnreadableFile
from tidemark.delta.live_files import LiveFile, live_files, table_filesystem
from tidemark.delta.storage import footers_of
from tidemark.delta.table_checks import OWNER
from tidemark.delta.table_io import open_if_exists, python_rows
from tidemark.spec.ref import PipelineKind, PipelineRef

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_BATCH_ROWS = 4_096
_FOOTERS = 1_000
"""Number of footers that are in memory at a time."""


@contextmanager
def translate_read_errors(uri: str, operation: str) -> Iterator[None]:
    """Raise failures of reading or rewriting a table's files as named errors.

    Args:
        uri: The table.
        operation: The operation, in the form "compacting the table".

    Raises:
        UnreadableFile: A file of the table cannot be read.
        StorageFailure, DeltaLogDamaged, EngineFailed: As in `translate_delta_errors`.
    """
    try:
        yield
    except Exception as failed:
        # PyArrow's errors are ValueErrors.
        if not (is_delta_error(failed) or isinstance(failed, ValueError)):
            raise
        with translate_delta_errors(uri, operation):
            table = open_if_exists(uri)
        if table is not None:
            raise_if_unreadable(table, failed)
        raise tidemark_error(failed, uri, operation) from failed


def raise_if_unreadable(
    table: DeltaTable, failed: Exception, read: Iterable[LiveFile] | None = None
) -> None:
    """Raise `UnreadableFile` for the file that made a read fail, unless the storage failed.

    Args:
        table: The table.
        failed: The failure.
        read: The files that may have been read; all by default.
    """
    if is_storage_error(failed):
        return
    text = str(failed)
    # First the files that the failure names; for text that is not UTF-8 it names none.
    candidates = live_files(table) if read is None else read
    files = sorted(candidates, key=lambda file: unquote(file.path) not in text)
    check_readable(table.table_uri, files)


def check_readable(uri: str, files: Iterable[LiveFile]) -> None:
    """Read files whole; raise `UnreadableFile` for the first that cannot be read.

    Skips a file whose read the storage denies or fails.
    """
    storage = table_filesystem(uri)
    for file in files:
        if reason := _fault(storage, file):
            path, owner = unquote(file.path), _owner(uri)
            if owner is not None and owner.kind is PipelineKind.TYPED:
                raise UnreadableFile.of_decoded_table(
                    table=uri, file=path, reason=reason, pipeline=owner.name
                )
            if owner is None or owner.kind is not PipelineKind.LIVE:
                raise UnreadableFile.of_other_table(table=uri, file=path, reason=reason)
            first, last = (file.bounds[name].get("plan_sequence") for name in ("min", "max"))
            raise UnreadableFile.of_plans(
                table=uri,
                file=path,
                reason=reason,
                pipeline=owner.name,
                first_plan=first,
                last_plan=last,
            )


class UnreadableFooter(NamedTuple):
    """A file of a table whose footer cannot be read, or that has fewer rows than in the log.

    Attributes:
        path: Path in the table.
        reason: The cause, in one line.
    """

    path: str
    reason: str


def unreadable_footer(uri: str, table: DeltaTable) -> UnreadableFooter | None:
    """Read the footers of all files of a version; return the first file with a fault.

    Finds missing, truncated and overwritten files. Damage within a file needs `check_readable`.

    Raises:
        OSError: The storage denies or fails a read.
    """
    storage, rows = table_filesystem(uri), python_rows(table.get_add_actions(flatten=True))
    for start in range(0, len(rows), _FOOTERS):
        for row in rows[start : start + _FOOTERS] if _has_fault(storage, rows, start) else ():
            path = unquote(row["path"])
            if reason := _footer_fault(storage, path, row.get("num_records")):
                return UnreadableFooter(path, reason)
    return None


def _has_fault(storage: FileSystem, rows: Sequence[Mapping[str, Any]], start: int) -> bool:
    """Whether some of the files cannot be read. Reads them concurrently."""
    import pyarrow as pa

    some = rows[start : start + _FOOTERS]
    try:
        footers = footers_of(storage, [unquote(row["path"]) for row in some])
    except (pa.ArrowException, OSError):
        return True
    return any(
        footer.num_rows < (row.get("num_records") or 0)
        for footer, row in zip(footers, some, strict=True)
    )


def _footer_fault(storage: FileSystem, path: str, records: int | None) -> str | None:
    import pyarrow as pa

    try:
        (footer,) = footers_of(storage, [path])
    except (pa.ArrowException, OSError) as failed:
        if is_storage_error(failed):
            raise
        return _in_one_line(failed)
    if footer.num_rows < (records or 0):
        return f"{counted(footer.num_rows, 'row')} instead of {records:,}"
    return None


def _in_one_line(failed: Exception) -> str:
    return (str(failed).splitlines() or [repr(failed)])[0][:300]


def _owner(uri: str) -> PipelineRef | None:
    """Return the owner of a table; None for a table of several pipelines."""
    owner = DeltaTable(uri).metadata().configuration.get(OWNER)
    return PipelineRef.parse(owner) if owner else None


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
        return _in_one_line(failed)
    return None

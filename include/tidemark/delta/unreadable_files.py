"""Named errors for failed reads: finds the file of a table that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake import DeltaTable

from tidemark.delta.delta_errors import (
    is_delta_error,
    is_storage_error,
    tidemark_error,
    translate_delta_errors,
)
from tidemark.delta.errors import UnreadableFile
from tidemark.delta.live_files import LiveFile, live_files, table_filesystem
from tidemark.delta.table_checks import OWNER
from tidemark.delta.table_io import open_if_exists
from tidemark.spec.ref import PipelineKind, PipelineRef

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_BATCH_ROWS = 4_096


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
        return (str(failed).splitlines() or [repr(failed)])[0][:300]
    return None

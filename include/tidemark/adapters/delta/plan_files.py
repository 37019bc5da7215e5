"""Files that cannot be read, and files that leave a table without being read."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction

from tidemark.adapters.delta.live_files import LiveFile, live_files, storage_of
from tidemark.errors import UnreadableFile

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)

_TRIES = 20
"""Another commit between the look and the commit refuses it. A try takes milliseconds."""
_BATCH_ROWS = 4_096


def files_of(table: DeltaTable, sequence: int) -> tuple[list[LiveFile], list[LiveFile]]:
    """Files that hold rows of one plan alone, and files that hold, or may hold, other rows as well.

    By their statistics. Compaction makes files of the second kind.
    """
    whole, mixed = [], []
    for file in live_files(table):
        least, most = (file.bounds[name].get("plan_sequence") for name in ("min", "max"))
        if least == most == sequence and file.records is not None:
            whole.append(file)
        elif least is None or most is None or least <= sequence <= most:
            mixed.append(file)
    return whole, mixed


def remove_whole(uri: str, sequence: int, metadata: str) -> int:
    """Remove the files that hold rows of one plan alone, in one commit. Reads none of them.

    Returns:
        The number of their rows.

    Raises:
        CommitFailedError: Other commits were first, each time.
    """
    for tries_left in range(_TRIES, 0, -1):
        table = DeltaTable(uri)
        whole, _ = files_of(table, sequence)
        if not whole:
            return 0
        try:
            _remove(table, whole, metadata)
        except CommitFailedError as refused:
            log.info("another commit was first uri=%s reason=%s", uri, refused)
            if tries_left == 1:
                raise
            continue
        break
    return sum(file.records or 0 for file in whole)


def _remove(table: DeltaTable, files: Sequence[LiveFile], metadata: str) -> None:
    """Commit as the very next version; refused if there is another one."""
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    removed = [
        RemoveAction(
            unquote(file.path),
            data_change=True,
            deletion_timestamp=now_ms,
            size=file.size,
            partition_values=dict(file.partition),
        )
        for file in files
    ]
    table.create_write_transaction(
        removed,
        "append",
        table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=CommitProperties(
            max_commit_retries=0, custom_metadata={"userMetadata": metadata}
        ),
    )


def refuse_unreadable(table: DeltaTable, failed: Exception) -> None:
    """Look for the file that a read has failed on.

    Raises:
        UnreadableFile: It is found.
    """
    text = str(failed)
    # Files that the failure names first; it names none for text that is not UTF-8.
    files = sorted(live_files(table), key=lambda file: unquote(file.path) not in text)
    check_readable(table.table_uri, files)


def check_readable(uri: str, files: Iterable[LiveFile]) -> None:
    """Read files whole.

    Raises:
        UnreadableFile: One of them cannot be read.
    """
    storage = storage_of(uri)
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
                # Looks at the encoding of text as well.
                batch.validate(full=True)
    except (pa.ArrowException, OSError) as failed:
        return (str(failed).splitlines() or [repr(failed)])[0][:300]
    return None

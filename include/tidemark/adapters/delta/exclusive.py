"""Whether a storage refuses to create a file twice, which keeps Delta's commits apart.

delta-rs commits a version by creating its file in the log, on the condition that there is none. A
storage that ignores the condition lets two processes commit the same version: the second overwrites
the first, which was acknowledged. So a storage is tried before the first commit to it, and a
transaction in the table remembers that it passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import deltalake
from arro3.core import Array, DataType, Field, RecordBatch, RecordBatchReader, Schema
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from tidemark.adapters.delta.failures import named_failures
from tidemark.errors import UnsafeStorage

PROOF = "tidemark.storage"
"""What the names of transactions begin with that remember a trial."""

_ONCE = CommitProperties(max_commit_retries=0)
_COLUMNS = Schema([Field("value", DataType.int64())])
_ENDPOINTS = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    *("AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL"),
)
"""Variables by which delta-rs takes another server for a URI; it reads the process's own."""


def is_proven(table: DeltaTable, uri: str) -> bool:
    """Whether this version of delta-rs has found this storage safe, as the table remembers it."""
    return table.transaction_version(_proof(uri)) is not None


def prove(uri: str) -> Transaction:
    """Try whether the storage of a table refuses to create a version of a Delta log twice.

    Args:
        uri: The table, which need not be there. A folder in it is made and removed.

    Returns:
        The transaction to commit to the table, so that it remembers this: its name has the place
        and delta-rs' version, its version is the time in seconds since 1970.

    Raises:
        UnsafeStorage: The second creation succeeded, or an option has turned the condition off.
        StorageRefused, StorageUnavailable: The storage cannot be written at all.
    """
    trial = f"{uri}/.tidemark-trial-{uuid4().hex}"
    with named_failures(uri, "creating a file in the table's storage"):
        try:
            refused = _refuses_a_second_creation(trial)
        except (DeltaError, OSError) as failure:
            if "PutMode::Create" not in str(failure):
                raise
            # An option of delta-rs has turned the condition off.
            raise UnsafeStorage(location=uri, reason=str(failure).strip()) from failure
        finally:
            _remove(trial)
        if not refused:  # fence: unsafe-storage-is-refused
            raise UnsafeStorage(location=uri, reason="the second creation overwrote the first")
        return Transaction(_proof(uri), int(datetime.now(UTC).timestamp()))


def _refuses_a_second_creation(trial: str) -> bool:
    return _commits_apart(trial) if "://" in trial else _links_apart(Path(trial))


def _links_apart(trial: Path) -> bool:
    """Create a file twice as delta-rs does on a file system: write it aside, then link it."""
    trial.mkdir(parents=True)
    aside = trial / "aside"
    aside.touch()
    (trial / "version").hardlink_to(aside)
    try:
        (trial / "version").hardlink_to(aside)
    except FileExistsError:
        return True
    return False


_CREATE = """
import sys
from arro3.core import DataType, Field, Schema
from deltalake import DeltaTable
DeltaTable.create(sys.argv[1], schema=Schema([Field("value", DataType.int64())]))
"""


def _commits_apart(trial: str) -> bool:
    """Create one table twice, the second time by a writer that has seen no table.

    delta-rs looks for the table, reads the rows that it is to write, then commits version 0. The
    first creation happens while the rows are read, so nothing but the storage refuses the second.
    It is another process that creates: rows are read by a thread of delta-rs' runtime, and a
    second call that waits for this runtime would stop it where there is one processor.
    """
    created: list[subprocess.CompletedProcess[str]] = []

    def rows() -> Iterator[RecordBatch]:
        command = [sys.executable, "-c", _CREATE, trial]
        created.append(subprocess.run(command, capture_output=True, text=True, check=False))
        yield RecordBatch.from_arrays([Array([1], type=DataType.int64())], schema=_COLUMNS)

    refused = False
    try:
        reader = RecordBatchReader.from_batches(_COLUMNS, rows())
        write_deltalake(trial, reader, mode="error", commit_properties=_ONCE)
    except CommitFailedError:
        refused = True
    if created[0].returncode:
        raise OSError(created[0].stderr)
    return refused


def _remove(trial: str) -> None:
    if "://" not in trial:
        shutil.rmtree(trial, ignore_errors=True)
        return
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import FileSelector, FileType

    storage = DeltaStorageHandler(trial)
    for found in storage.get_file_info_selector(FileSelector("", recursive=True)):
        if found.type == FileType.File:
            storage.delete_file(found.path)


def _proof(uri: str) -> str:
    """The name of the transaction that remembers the trial of a place.

    A copy of the table is another place: a folder has another inode, a bucket of the same name is
    on another server.
    """
    if "://" in uri:
        server = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
        place = f"{uri} {server}".rstrip()
    else:
        place = f"{uri} inode {Path(uri).stat().st_ino}"
    return f"{PROOF} delta-rs={deltalake.__version__} {place}"

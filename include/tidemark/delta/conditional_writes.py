"""Tests whether a storage refuses to create a file twice, which Delta's commits depend on.

delta-rs commits a version by creating its file in the log, on the condition that none exists. A
storage that ignores the condition lets two processes commit the same version: the second overwrites
the first, which was acknowledged. So Tidemark tests a storage before the first commit to it, and
stores the success as a transaction in the table.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import deltalake
from arro3.core import Array, DataType, Field, RecordBatch, RecordBatchReader, Schema
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from tidemark.delta.delta_errors import translate_delta_errors
from tidemark.delta.errors import StorageRefused, UnsafeStorage
from tidemark.delta.live_files import table_filesystem, write_file
from tidemark.delta.unreferenced_files import TRIAL_PREFIX
from tidemark.spec.targets import S3_ENDPOINTS

PROOF_PREFIX = "tidemark.lake.storage"
"""Prefix of the names of transactions that store a passed test."""

_ONCE = CommitProperties(max_commit_retries=0)
_COLUMNS = Schema([Field("value", DataType.int64())])
_ENDPOINTS = (
    *S3_ENDPOINTS,
    *("AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL"),
)
"""Variables that select another server for a URI; delta-rs reads them from the environment."""


def missing_storage_proofs(table: DeltaTable, uri: str) -> list[Transaction]:
    """Test the storage of a table, unless the table stores a passed test of it.

    Returns:
        The transactions to commit to the table. Empty if the table stores a passed test of this
        storage with this version of delta-rs.

    Raises:
        UnsafeStorage, StorageFailure: As in `prove_conditional_writes`.
    """
    proof = _proof(uri)
    if table.transaction_version(proof.app_id) == proof.version:
        return []
    return [prove_conditional_writes(uri)]


def prove_conditional_writes(uri: str) -> Transaction:
    """Test whether the storage of a table refuses to create a version of a Delta log twice.

    Args:
        uri: The table, which need not exist. The test creates a folder in it and removes it.

    Returns:
        The transaction to commit to the table.

    Raises:
        UnsafeStorage: The second creation succeeded, or an option has turned the condition off.
        StorageFailure: The storage cannot be written at all.
    """
    trial = f"{uri}/{TRIAL_PREFIX}{uuid4().hex}"
    with translate_delta_errors(uri, "creating a file in the table's storage"):
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
        return _proof(uri)


def check_writable(uri: str) -> None:
    """Check that this process may create files in a table, and in its log.

    Raises:
        StorageFailure: It may not.
    """
    operation = "creating a file"
    if "://" not in uri:
        for folder in (uri, f"{uri}/_delta_log"):
            if not os.access(folder, os.W_OK | os.X_OK):
                raise StorageRefused(
                    location=folder, operation=operation, reason=os.strerror(errno.EACCES)
                )
        return
    with translate_delta_errors(uri, operation):
        storage, path = table_filesystem(uri), f"{TRIAL_PREFIX}{uuid4().hex}/probe"
        write_file(storage, path, b"a trial")
        # Maintenance removes the file if this process may not.
        with suppress(DeltaError, OSError):
            storage.delete_file(path)


def _refuses_a_second_creation(trial: str) -> bool:
    return _commits_apart(trial) if "://" in trial else _links_apart(Path(trial))


def _links_apart(trial: Path) -> bool:
    """Create a file twice as delta-rs does on a file system: link a temporary file to its name."""
    trial.mkdir(parents=True)
    aside = trial / "aside"
    aside.touch()
    (trial / "version").hardlink_to(aside)
    try:
        (trial / "version").hardlink_to(aside)
    except FileExistsError:
        return True
    return False


_LONGEST_S = 600.0
"""The longest wait for the test of a remote storage, seconds."""

# -P keeps the working directory out of the search path of modules.
_PYTHON = (sys.executable, "-P", "-c")

_CREATE = """
import sys
from arro3.core import DataType, Field, Schema
from deltalake import DeltaTable
DeltaTable.create(sys.argv[1], schema=Schema([Field("value", DataType.int64())]))
"""


def _commits_apart(trial: str) -> bool:
    """Create one table twice in another process, and return whether the second creation failed.

    In this process, the test could wait forever. A thread of delta-rs' runtime reads rows in
    Python. A query in another thread may hold Python's global lock while it waits for the runtime.
    """
    command = [*_PYTHON, _TRY, trial]
    try:
        tried = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired as late:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from late
    if tried.returncode:
        raise OSError(tried.stderr.strip())
    # Other code of the process, such as `sitecustomize`, may also print.
    last = (tried.stdout.splitlines() or [""])[-1]
    if last not in _RESULTS:
        raise OSError(f"the test of the storage printed {last!r}, expected one of {_RESULTS}")
    return last == "refused"


_RESULTS = ("refused", "overwrote")

_TRY = """
import sys
from tidemark.delta.conditional_writes import create_twice
create_twice(sys.argv[1])
"""


def create_twice(trial: str) -> None:
    """Create one table twice, the second time by a writer that has found no table.

    delta-rs looks for the table, reads the rows to write, then commits version 0. The first
    creation happens while delta-rs reads the rows, so only the storage can refuse the second. A
    separate process makes the first creation: with one processor, a second call that waits for the
    runtime would block the runtime.

    The last line of output is one of `_RESULTS`. If a creation fails for another cause,
    exits with this cause.
    """
    created: list[subprocess.CompletedProcess[str]] = []

    def rows() -> Iterator[RecordBatch]:
        command = [*_PYTHON, _CREATE, trial]
        created.append(
            subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_LONGEST_S / 2
            )
        )
        yield RecordBatch.from_arrays([Array([1], type=DataType.int64())], schema=_COLUMNS)

    answer = "overwrote"
    try:
        reader = RecordBatchReader.from_batches(_COLUMNS, rows())
        write_deltalake(trial, reader, mode="error", commit_properties=_ONCE)
    except CommitFailedError:
        answer = "refused"
    except (DeltaError, OSError) as failed:
        sys.exit(str(failed))
    if created[0].returncode:
        sys.exit(created[0].stderr)
    sys.stdout.write(f"\n{answer}\n")


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


def _proof(uri: str) -> Transaction:
    """The transaction that stores a passed test of a location.

    A copy of the table is another location: a folder has another inode, a bucket of the same name
    is on another server. The name contains the location, the server and the version of delta-rs.
    The inode is the transaction's version, so the test of a new inode replaces the previous test.
    """
    name = f"{PROOF_PREFIX} delta-rs={deltalake.__version__} {uri}"
    if "://" in uri:
        server = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
        return Transaction(f"{name} {server}".rstrip(), 1)
    # A transaction's version is a signed 64-bit number.
    return Transaction(f"{name} inode", Path(uri).stat().st_ino & (2**63 - 1))

"""Tests that texts and numbers of storage errors become named errors."""

from __future__ import annotations

import errno

import pytest
from deltalake.exceptions import DeltaError

from tidemark.core.errors import TidemarkError
from tidemark.delta.delta_errors import is_storage_error, tidemark_error
from tidemark.delta.errors import (
    DeltaLogDamaged,
    EngineFailed,
    StorageRefused,
    StorageUnavailable,
)

TEXTS: dict[str, type[TidemarkError]] = {
    "Generic LocalFileSystem error: Permission denied (os error 13)": StorageRefused,
    "Generic LocalFileSystem error: No space left on device (os error 28)": StorageUnavailable,
    "Generic LocalFileSystem error: Disk quota exceeded (os error 122)": StorageUnavailable,
    "Client error with status 403 Forbidden: <Code>AccessDenied</Code>": StorageRefused,
    "The specified bucket does not exist: NoSuchBucket": StorageRefused,
    "Error after 10 retries in 3.2s, max_retries:10, source:HTTP error": StorageUnavailable,
    "Server returned non-2xx status code: 503 Service Unavailable: ": StorageUnavailable,
    "Server error with status 500 Internal Server Error": StorageUnavailable,
    "the storage answered with status 503": StorageUnavailable,
    "Kernel error: Arrow error: External: Error after 10 retries": StorageUnavailable,
    "Kernel error: Arrow error: External: Object at location a not found": EngineFailed,
    "error sending request for url (http://127.0.0.1:9)": StorageUnavailable,
    "Invalid batch of 8512 Rows": EngineFailed,
    "Schema error: column 500 Value is missing": EngineFailed,
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_class_of_an_error_follows_from_its_text(text: str) -> None:
    error = tidemark_error(DeltaError(text), "s3://lake/events", "reading the table")
    assert type(error) is TEXTS[text]
    assert "reading the table" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "Kernel error: Json error: Truncated record whilst reading string",
        "External error: Kernel error: Generic delta kernel error: Malformed JSON: 0 objects",
        "Kernel error: Arrow error: EOF: file size of 7 is less than footer",
        "Kernel error: Arrow error: Parquet error: Invalid Parquet file. Corrupt footer",
    ],
)
def test_an_unreadable_commit_or_checkpoint_is_a_damaged_log(text: str) -> None:
    error = tidemark_error(DeltaError(text), "s3://lake/events", "reading the table")
    assert isinstance(error, DeltaLogDamaged)
    assert (error.location, error.reason) == ("s3://lake/events", text)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError("Permission denied (os error 13)"), True),
        (Exception("Server returned non-2xx status code: 503 Service Unavailable: "), True),
        (FileNotFoundError("Error performing GET, after 0 retries: 404 Not Found"), False),
        (DeltaError("Object at location a not found: after 0 retries"), False),
        (OSError("Couldn't deserialize thrift: TProtocolException"), False),
    ],
)
def test_a_storage_error_is_no_missing_or_damaged_file(failure: Exception, expected: bool) -> None:
    """The fix of a missing file changes the table."""
    assert is_storage_error(failure) is expected


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, StorageRefused),
        (errno.EROFS, StorageRefused),
        (errno.ENOSPC, StorageUnavailable),
        (errno.EDQUOT, StorageUnavailable),
        (errno.EIO, StorageUnavailable),
        (errno.EPIPE, EngineFailed),
    ],
)
def test_the_class_of_an_error_follows_from_its_number(
    number: int, kind: type[TidemarkError]
) -> None:
    assert type(tidemark_error(OSError(number, "it failed"), "/lake", "writing the table")) is kind

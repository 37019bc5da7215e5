"""The storage of tables: it refuses, it fails, or it cannot keep commits apart."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from tidemark.errors.base import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class StorageRefused(TerminalError):
    """The storage does not let this process read or write a table or a page."""

    location: str
    operation: str
    reason: str

    def what(self) -> str:
        return f"{self.operation} failed at {self.location}: {self.reason}"

    def expected(self) -> str:
        return "storage that this process may read and write"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "give this process access to the location, then run the command again"


@dataclass(kw_only=True, eq=False)
class StorageUnavailable(TransientError):
    """The storage of a table or a page is full, or does not answer."""

    location: str
    operation: str
    reason: str

    def what(self) -> str:
        return f"{self.operation} failed at {self.location}: {self.reason}"

    def expected(self) -> str:
        return "storage that answers and has free space"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "free space or make the storage reachable, then run the command again"


@dataclass(kw_only=True, eq=False)
class DeltaLogDamaged(TerminalError):
    """A folder has data files without a Delta log, or a Delta log is incomplete."""

    location: str
    reason: str

    def what(self) -> str:
        return f"{self.location} has no complete Delta log: {self.reason}"

    def expected(self) -> str:
        return "a folder with a complete _delta_log, or without data files"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "restore the whole folder _delta_log; without a copy of it, move the table's folder "
            "away and run the command again; if the folder never was a Delta table, use another "
            "location for the table (docs/runbook.md, DeltaLogDamaged)"
        )


@dataclass(kw_only=True, eq=False)
class UnsafeStorage(TerminalError):
    """The storage accepts the creation of a file that already exists."""

    location: str
    reason: str

    def what(self) -> str:
        return (
            f"the storage of {self.location} is unsafe: two processes can commit the same version "
            f"of a table there, which loses one of the two commits"
        )

    def expected(self) -> str:
        return "storage that refuses a second creation of a file (on S3: PUT with If-None-Match: *)"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "move the lakehouse to storage with conditional writes (docs/clusters.md, Storage; "
            "docs/runbook.md, UnsafeStorage)"
        )


_REFUSED = {
    *(errno.EPERM, errno.EACCES, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP),
}
_UNAVAILABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE),
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH),
}


def storage_error(number: int | None) -> type[StorageRefused] | type[StorageUnavailable] | None:
    """The error class for an error number of the operating system; None for other numbers."""
    if number in _REFUSED:
        return StorageRefused
    return StorageUnavailable if number in _UNAVAILABLE else None

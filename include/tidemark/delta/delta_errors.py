"""Named errors for exceptions of delta-rs."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from deltalake.exceptions import DeltaError

from tidemark.core.errors import TidemarkError
from tidemark.delta.errors import (
    DeltaLogDamaged,
    EngineFailed,
    StorageFailure,
    StorageRefused,
    StorageUnavailable,
    TableAltered,
    storage_error,
)

_Adapter = TypeVar("_Adapter")

_OS_ERROR = re.compile(r"\(os error (\d+)\)|Os \{ code: (\d+)")
_NO_ACCESS = re.compile(
    r"40[13] (?:Unauthorized|Forbidden)|NoSuchBucket|AccessDenied|Permission ?Denied", re.IGNORECASE
)
_NO_ANSWER = re.compile(
    r"after \d+ retries|error sending request|timed out"
    r"|\b(?:status|code)[: ]+5\d\d\b|\b50[0-9] (?:Internal|Bad|Service|Gateway)"
)
_DAMAGED_LOG = re.compile(
    r"No table metadata or protocol found|Expected contiguous commit files|Invalid Checkpoint"
)
_NO_NEWEST_COMMIT = re.compile(r"Invalid table version: (\d+)")
"""The error of delta-rs for a commit that follows a version without a commit file."""
_DAMAGED_LOG_FILE = re.compile(r"Kernel error: (?:Json|Arrow) error|Malformed JSON")
"""Errors of delta-rs's kernel, which reads commits and checkpoints, but no files with rows."""
_PROTOCOL = re.compile(
    r"Unsupported table features required: \[(?P<kinds>.+?)\]"
    r"|Feature '(?P<feature>[^']+)' is not supported"
    r"|Unsupported minimum (?P<role>reader|writer) version (?P<version>\d+)"
    r"|Max catalog version is required"
    r"|Table features must be specified"
)
"""Errors of delta-rs for a table whose protocol it does not support."""
_FEATURES = {"ClusteredTable": "clustering", "TimestampWithoutTimezone": "timestampNtz"}
"""Names of table features in protocols, by names in delta-rs that differ in more than one letter.
"""
_UNKNOWN_FEATURE = re.compile(r'Unknown\("(.+)"\)')
_NO_FILE = re.compile(r"\bnot found\b", re.IGNORECASE)
_NO_FOLDER = "Invalid table location"
"""The message of delta-rs if a file occupies the path of a table."""
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|↳")
_LONGEST = 300


@contextmanager
def translate_delta_errors(location: str, operation: str = "using the table") -> Iterator[None]:
    """Raise exceptions of delta-rs as named errors, with the cause in the first line.

    Args:
        location: The table.
        operation: The operation, in the form "reading the table".

    Raises:
        StorageFailure: The storage denies the operation, is full, or does not answer.
        DeltaLogDamaged: The log of the table is incomplete or damaged.
        EngineFailed: Something else failed in delta-rs.
    """
    try:
        yield
    except Exception as failure:
        if is_delta_error(failure):
            raise tidemark_error(failure, location, operation) from failure
        raise


@contextmanager
def space_needed(bytes_needed: Callable[[], int]) -> Iterator[None]:
    """Add the space that an operation needs to the error of a full storage.

    Args:
        bytes_needed: Returns the most bytes that the operation writes.
    """
    try:
        yield
    except StorageUnavailable as failure:
        if failure.reason in _FULL:
            failure.bytes_needed = bytes_needed()
        raise


_FULL_NUMBERS = (errno.ENOSPC, errno.EDQUOT)
_FULL = {*map(os.strerror, _FULL_NUMBERS)}


def is_full(failure: Exception) -> bool:
    """Whether a disk was full."""
    return os_error_number(failure) in _FULL_NUMBERS


def tidemark_error(failure: Exception, location: str, operation: str) -> TidemarkError:
    """Return the named error for an exception of delta-rs."""
    text = str(failure)
    if _DAMAGED_LOG.search(text):
        return DeltaLogDamaged(location=location, reason=_in_one_line(text))
    if newest := _NO_NEWEST_COMMIT.search(text):
        return DeltaLogDamaged.without_newest_commit(location, int(newest[1]))
    if protocol := _PROTOCOL.search(text):
        return _protocol_error(location, protocol)
    number = os_error_number(failure)
    kind = storage_error(number)
    if number is None and _NO_ACCESS.search(text):
        kind = StorageRefused
    elif kind is None and _NO_ANSWER.search(text):
        kind = StorageUnavailable
    # A missing file is no damage: another process may remove an old checkpoint during a read.
    if kind is None and _DAMAGED_LOG_FILE.search(text) and not _NO_FILE.search(text):
        return DeltaLogDamaged(location=location, reason=_in_one_line(text))
    if kind is None:
        return EngineFailed(operation=f"{operation} at {location}", reason=_in_one_line(text))
    reason = os.strerror(number) if number else _in_one_line(text)
    return kind(location=location, operation=operation, reason=reason)


def _protocol_error(location: str, found: re.Match[str]) -> TableAltered:
    """Return the error for a protocol that delta-rs does not support."""
    if version := found["version"]:
        difference = f"it needs a {found['role']} of version {version}"
        return TableAltered.of_protocol(location, difference)
    features = [found["feature"]] if found["feature"] else []
    if found["kinds"]:
        features += [_feature_name(kind) for kind in found["kinds"].split(", ")]
    if "catalog" in found[0]:
        features.append("catalogManaged")
    if not features:
        return TableAltered.of_protocol(location, "its protocol names no table features")
    difference = f"it has the feature {', '.join(sorted(features))}"
    return TableAltered.of_protocol(location, difference, tuple(sorted(features)))


def _feature_name(kind: str) -> str:
    """Return the name of a table feature in a protocol from its name in delta-rs."""
    unknown = _UNKNOWN_FEATURE.fullmatch(kind)
    return unknown[1] if unknown else _FEATURES.get(kind, kind[:1].lower() + kind[1:])


def is_storage_error(failure: Exception) -> bool:
    """Whether the storage denied an operation or failed; not for a missing file."""
    if isinstance(failure, FileNotFoundError) or _NO_FILE.search(str(failure)):
        return False
    return isinstance(tidemark_error(failure, "", ""), StorageFailure)


def is_delta_error(failure: Exception) -> bool:
    """Whether delta-rs raised an exception; Arrow's binding raises Exception itself."""
    return isinstance(failure, DeltaError | OSError) or type(failure) is Exception


def os_error_number(failure: Exception) -> int | None:
    """The operating system's error number in an exception of delta-rs; None without one."""
    text = str(failure)
    if _NO_FOLDER in text:
        return errno.ENOTDIR
    found = _OS_ERROR.findall(text)
    return getattr(failure, "errno", None) or (int("".join(found[-1])) if found else None)


def _in_one_line(text: str) -> str:
    """A message of delta-rs without colours, arrows and the frames of a backtrace."""
    lines = (_DECORATION.sub("", line).strip() for line in text.splitlines())
    kept = [line for line in lines if line and not re.match(r"\d+: |at \./", line)]
    return ": ".join(kept)[:_LONGEST] or "no reason given"


def translates_delta_errors(adapter: type[_Adapter]) -> type[_Adapter]:
    """Make every public method of an adapter raise named errors; `_uri` is its table."""
    for name, member in list(vars(adapter).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(adapter, name, _naming(member))
    return adapter


def _naming(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(self: Any, *arguments: Any, **options: Any) -> Any:
        with translate_delta_errors(self._uri):
            result = method(self, *arguments, **options)
        return _naming_each(self._uri, result) if isinstance(result, Iterator) else result

    return called


def _naming_each(location: str, items: Iterator[Any]) -> Iterator[Any]:
    """Iterate over rows; delta-rs reads them during the iteration."""
    with translate_delta_errors(location):
        yield from items

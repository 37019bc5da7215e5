"""Small files that processes of this machine share: atomic replacement, and locks."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemark.delta.errors import storage_error


@contextmanager
def translate_os_errors(location: Path, operation: str) -> Iterator[None]:
    """Raise errors of the file system as named errors.

    Args:
        location: The file or folder for the error; a file name in the `OSError` replaces it.
        operation: The operation, in the form "writing the page".

    Raises:
        StorageFailure: The file system denies the operation, is full, or fails.
    """
    try:
        yield
    except OSError as failed:
        kind = storage_error(failed.errno)
        if kind is None:
            raise
        place = str(failed.filename or location)
        raise kind(location=place, operation=operation, reason=str(failed.strerror)) from failed


def replace_text(file: Path, text: str) -> None:
    """Replace a file atomically; creates its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def read_json(file: Path) -> Any:
    """Return the content of a JSON file; None if the file does not exist."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


@contextmanager
def locked(file: Path, *, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock while the block runs; wait until it is free.

    The operating system releases the lock when its process ends, even after SIGKILL.

    Args:
        file: The lock file; created with its folder, never removed.
        waiting: Called if another process holds the lock.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(held, fcntl.LOCK_EX)
        yield

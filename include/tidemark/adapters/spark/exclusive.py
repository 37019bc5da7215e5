"""One driver at a time on a table of a local disk.

Delta's log store for local disks checks that a version is free and then renames a file onto it: two
drivers of one machine can pass the check together. Object stores have log stores of their own.
Source: Delta Lake, "Storage configuration".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.files import locked

log = logging.getLogger(__name__)


@contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Hold the lock beside a table while the block runs; wait for whoever has it.

    Args:
        uri: The table, which exists; a URI with a scheme is no local disk: nothing is locked.
    """
    if "://" in uri:
        yield
        return
    table = Path(uri)
    with locked(
        table.with_name(f".{table.name}.lock"),
        waiting=lambda: log.info("waiting for another driver of this table uri=%s", uri),
    ):
        yield

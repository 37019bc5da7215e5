"""Tables that a step or a page opens once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable

_opened: ContextVar[dict[str, DeltaTable | None] | None] = ContextVar("_opened", default=None)
"""Tables of the `tables_opened_once` block, by URI; None outside such blocks."""


@contextmanager
def tables_opened_once() -> Iterator[None]:
    """Open each table at most once in this block, which must only read.

    Opening a table reads its log, which takes a tenth of a second for thousands of files. All
    reads of a table return its state at the first read, until `reopen_tables` is called. Reads in
    other threads open their own tables. An inner block uses the tables of the outer block.
    """
    outer = _opened.get()
    before = _opened.set({} if outer is None else outer)
    try:
        yield
    finally:
        _opened.reset(before)


def reopen_tables() -> None:
    """Update the tables of the `tables_opened_once` block to their newest state.

    On a local disk, only newer commits are read. So a table that was removed, or removed and
    created again, may keep its previous state until the end of the block.
    """
    tables = _opened.get()
    if not tables:
        return
    # DAG files import this module, and delta-rs takes long to load.
    from deltalake.exceptions import DeltaError

    from tidemark.delta.copied_tables import OpenedTable

    for uri, table in [*tables.items()]:
        try:
            if table is None or isinstance(table, OpenedTable):
                del tables[uri]
            else:
                table.update_incremental()
        except (DeltaError, OSError, ValueError):
            # The next read opens the table, and reports its own error.
            del tables[uri]


def opened_tables() -> dict[str, DeltaTable | None] | None:
    """Return the tables of the block by URI, to which a read adds; None outside."""
    return _opened.get()

"""Trying again after somebody else wrote first: the compare-and-set's other half."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tidemark.lake.errors import ControlConflict, TransactionConflict

log = logging.getLogger(__name__)

T = TypeVar("T")


def retry_on_conflict(step: Callable[[], T], attempts: int = 5) -> T:
    """What `step` returns; it reads the ledger anew each time.

    Args:
        step: Reads, decides and writes.
        attempts: How often it may be tried in all.

    Raises:
        ControlConflict, TransactionConflict: Others were first every time.
    """
    for attempt in range(1, attempts):
        try:
            return step()
        except (ControlConflict, TransactionConflict) as conflict:
            log.info(
                "again after a conflict attempt=%d reason=%s", attempt, conflict.rendered("problem")
            )
    return step()

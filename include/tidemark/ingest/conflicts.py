"""Retries after a concurrent process won a compare-and-set."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tidemark.lake.errors import ControlConflict, TransactionConflict

log = logging.getLogger(__name__)

T = TypeVar("T")


def retry_on_conflict(step: Callable[[], T], attempts: int = 5) -> T:
    """Run a step until it has no conflict, and return its result.

    Args:
        step: Reads the current state, decides and writes.
        attempts: Maximum number of runs.

    Raises:
        ControlConflict, TransactionConflict: A concurrent process was first in every attempt.
    """
    for attempt in range(1, attempts):
        try:
            return step()
        except (ControlConflict, TransactionConflict) as conflict:
            log.info(
                "retry after conflict attempt=%d reason=%s", attempt, conflict.rendered("problem")
            )
    return step()

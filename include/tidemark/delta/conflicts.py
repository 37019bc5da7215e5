"""Retries after a conflict with a concurrent process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from tidemark.delta.errors import CommitConflict

log = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS = 5
_PAUSE = wait_random_exponential(multiplier=0.05, max=1)
"""Seconds before a retry: random, below 0.05, 0.1, 0.2 and so on."""


def retry_on_conflict(step: Callable[[], T], conflict: type[CommitConflict] = CommitConflict) -> T:
    """Run a step until it has no conflict, and return its result.

    Waits for a random time before each retry, so that competing processes do not repeat their
    conflict.

    Args:
        step: Reads the current state and, if it writes, decides and writes.
        conflict: Only these errors are retried.

    Raises:
        CommitConflict: A concurrent process was first in every attempt.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(conflict),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=_PAUSE,
        before_sleep=_log_conflict,
        reraise=True,
    )
    return retrying(step)


def _log_conflict(attempt: RetryCallState) -> None:
    conflict = attempt.outcome.exception() if attempt.outcome else None
    if isinstance(conflict, CommitConflict):
        log.info(
            "retry after conflict attempt=%d error=%s message=%s",
            attempt.attempt_number,
            type(conflict).__name__,
            conflict.rendered("problem"),
        )

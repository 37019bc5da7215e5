"""One step for several pipelines, where one that fails stops no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidemark.core.errors import TidemarkError, Unforeseen

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

PLANNING_THREADS = 8
"""Pipelines planned or looked at side by side: each waits for its cluster, for long if it is away.
"""


def attempt(item: T, step: Callable[[T], R]) -> R | TidemarkError:
    """Return the result of `step` for an item, or its named error."""
    try:
        return step(item)
    except TidemarkError as error:
        log.info("%s: %s: %s", item, type(error).__name__, error)
        return error
    except Exception as error:
        log.exception("%s: unforeseen", item)
        return Unforeseen(kind=type(error).__name__, text=str(error)[:500])


def map_in_threads(
    items: Sequence[T], step: Callable[[T], R], at_once: int
) -> list[R | TidemarkError]:
    """Take a step for each item, and return the results or named errors in the items' order.

    Args:
        items: What to take the step for.
        step: Called in threads.
        at_once: How many at the same time.
    """
    threads = ThreadPoolExecutor(max_workers=at_once)
    try:
        came = list(threads.map(lambda item: attempt(item, step), items))
    except BaseException:
        # The process is ending. The callers end the work of the threads before they exit.
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()
    return came

"""One step for several pipelines at once; an error of one does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from tidemark.core.errors import TidemarkError, Unforeseen

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

PLANNING_THREADS = 8
"""Pipelines that are planned or checked at once. Each waits for its Kafka cluster; an unreachable
cluster blocks a thread until its timeout."""


def result_or_error(item: T, step: Callable[[T], R]) -> R | TidemarkError:
    """Return the result of a step, or the error that it raised, which the caller reports.

    Logs the name of the error only, so that a command prints its text once.
    """
    try:
        return step(item)
    except TidemarkError as error:
        log.info("step failed item=%s error=%s", item, type(error).__name__)
        return error
    except Exception as error:
        log.exception("unexpected error item=%s", item)
        return Unforeseen(kind=type(error).__name__)


def result_of_thread(item: T, step: Callable[[T], R]) -> R | TidemarkError:
    """Return the result of a step as `result_or_error` does, for a thread that must not end.

    A panic in a library written in Rust is no `Exception`.
    """
    try:
        return result_or_error(item, step)
    except BaseException as panic:
        log.exception("unexpected error item=%s", item)
        return Unforeseen(kind=type(panic).__name__)


def map_in_threads(
    items: Sequence[T], step: Callable[[T], R], at_once: int
) -> list[R | TidemarkError]:
    """Run a step for each item, and return the results or errors in the order of the items.

    Args:
        items: Arguments of the step.
        step: Called in threads.
        at_once: Number of threads.
    """
    threads = ThreadPoolExecutor(max_workers=at_once)
    try:
        results = list(threads.map(partial(result_or_error, step=step), items))
    except BaseException:
        # The process is exiting. The callers stop the work of the threads before they exit.
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()
    return results

"""Waiting for a condition of another process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    held: Callable[[], object],
    timeout_s: float = 240.0,
    pause_s: float = 0.02,
    *,
    what: str = "a condition",
) -> None:
    """Poll until a condition holds.

    Args:
        held: Returns a true value if the condition holds.
        timeout_s: Time limit.
        pause_s: Time between two polls.
        what: The condition, for the error.

    Raises:
        TimeoutError: The condition did not hold within the time limit.
    """
    deadline = time.monotonic() + timeout_s
    while not held():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(pause_s)

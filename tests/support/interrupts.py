"""Signals of Ctrl-C for the processes of tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def processes_with_sigint() -> Iterator[None]:
    """Let the processes that start in the block receive SIGINT.

    A process in the background of a shell ignores the signal. Its child processes inherit this.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

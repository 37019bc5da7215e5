"""Progress of long steps: elapsed time on a terminal, plain lines in logs and pipes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tidemark.cli.output import err, note, step
from tidemark.core.errors import format_duration
from tidemark.core.logs import is_json_log

REPEAT_S = 30.0
"""Seconds between two lines about the same phase in logs and pipes."""


@contextmanager
def phase(text: str) -> Iterator[None]:
    """Print one line at the start of a phase, and show its elapsed time until it ends.

    A terminal shows the time in place, and removes it at the end. Logs and pipes get a line every
    `REPEAT_S` seconds. Standard output gets nothing. Phases are not nested.
    """
    step(text)
    shows_in_place = err.is_terminal and not err.is_dumb_terminal and not is_json_log()
    with _in_place(text) if shows_in_place else _in_lines(text):
        yield


@contextmanager
def _in_place(text: str) -> Iterator[None]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def _in_lines(text: str) -> Iterator[None]:
    ended = threading.Event()

    def repeat() -> None:
        passed = timedelta()
        while not ended.wait(REPEAT_S):
            passed += timedelta(seconds=REPEAT_S)
            note(f"{text}: {format_duration(passed)}")

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

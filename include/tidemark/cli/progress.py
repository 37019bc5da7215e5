"""Progress of long steps: elapsed time and a bar on a terminal, plain lines in logs and pipes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeAlias

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tidemark.cli.output import err, note, step
from tidemark.core.logs import is_json_log
from tidemark.core.texts import format_duration

REPEAT_S = 30.0
"""Seconds between two lines about the same phase in logs and pipes."""

SHORT_S = 2.0
"""Seconds without output in a phase that is usually short."""

ShowDone: TypeAlias = Callable[[int, int], None]
"""Shows the number of finished parts of a phase, and the number of all parts."""


@contextmanager
def phase(text: str, *, quiet_s: float = 0.0, unit: str = "") -> Iterator[ShowDone]:
    """Print one line about a phase, and show its elapsed time until it ends.

    A terminal shows the time in place, and removes it at the end. Logs and pipes get a line every
    `REPEAT_S` seconds. Standard output gets nothing. Phases are not nested.

    Args:
        text: What is done.
        quiet_s: Seconds without output, for a phase that is usually short.
        unit: The parts that the progress counts, if the text does not name them.

    Yields:
        A function that shows the progress, as a bar or as figures in lines. Any thread may call it.
    """
    shows_in_place = err.is_terminal and not err.is_dumb_terminal and not is_json_log()
    shown = (_in_place if shows_in_place else _in_lines)(text, quiet_s, unit)
    with shown as show_done:
        yield show_done


@contextmanager
def _in_place(text: str, quiet_s: float, unit: str) -> Iterator[ShowDone]:
    columns: tuple[ProgressColumn, ...] = (SpinnerColumn(), TextColumn("{task.description}"))
    progress = Progress(
        *columns, TimeElapsedColumn(), console=err, transient=True, redirect_stdout=False
    )
    task = progress.add_task(text, total=None)

    def start() -> None:
        step(text)
        progress.start()

    def show_done(done: int, total: int) -> None:
        counted = (MofNCompleteColumn(), TextColumn(unit)) if unit else (MofNCompleteColumn(),)
        progress.columns = (*columns, BarColumn(), *counted, TimeElapsedColumn())
        progress.update(task, completed=done, total=total)

    starter = threading.Timer(quiet_s, start)
    starter.daemon = True
    try:
        if quiet_s:
            starter.start()
        else:
            start()
        yield show_done
    finally:
        starter.cancel()
        if starter.is_alive():
            starter.join()
        progress.stop()


@contextmanager
def _in_lines(text: str, quiet_s: float, unit: str) -> Iterator[ShowDone]:
    ended = threading.Event()
    counts = ""

    def show_done(done: int, total: int) -> None:
        nonlocal counts
        counts = f"{' '.join(filter(None, (f'{done:,} of {total:,}', unit)))}, "

    def repeat() -> None:
        if quiet_s:
            if ended.wait(quiet_s):
                return
            step(text)
        passed = timedelta(seconds=quiet_s)
        while not ended.wait(REPEAT_S):
            passed += timedelta(seconds=REPEAT_S)
            note(f"{text}: {counts}{format_duration(passed)}")

    if not quiet_s:
        step(text)
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield show_done
    finally:
        ended.set()
        thread.join()

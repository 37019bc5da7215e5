"""Progress of long steps: elapsed time and a bar on a terminal, plain lines in logs and pipes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from datetime import timedelta
from typing import Any, TextIO, TypeAlias, cast

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

from tidemark.cli.output import err, note, step
from tidemark.core.logs import is_json_log
from tidemark.core.texts import format_duration

REPEAT_S = 30.0
"""Seconds between two lines about the same phase in logs and pipes."""

SHORT_S = 2.0
"""Seconds before the first output about a phase that is usually short, or about a command."""

_BESIDE_TEXT = 12
"""Columns of the terminal for the spinner and the elapsed time."""

ShowDone: TypeAlias = Callable[[int, int], None]
"""Shows the number of finished parts of a phase, and the number of all parts."""


@contextmanager
def phase(
    text: str, *, quiet_s: float = 0.0, unit: str = "", has_bar: bool = True
) -> Iterator[ShowDone]:
    """Print one line about a phase, and show its elapsed time until it ends.

    A terminal shows the time in place, and removes it at the end. Logs and pipes get a line every
    `REPEAT_S` seconds. Standard output gets nothing. On a terminal, a nested phase is below the
    outer phase. A phase hides the text of `waiting`.

    Args:
        text: What is done.
        quiet_s: Seconds without output, for a phase that is usually short. A terminal then shows
            the phase in place, and prints no line.
        unit: The parts that the progress counts, if the text does not name them.
        has_bar: Whether a terminal also shows a bar. A bar would move backwards if the total
            grows.

    Yields:
        A function that shows the progress as figures; a terminal can also show a bar. Any thread
        may call the function.
    """
    if _shows_in_place():
        shown = _in_place(text, quiet_s, unit, has_bar=has_bar)
    else:
        shown = _in_lines(text, quiet_s, unit)
    with _paused(), shown as show_done:
        yield show_done


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a text with the elapsed time on a terminal, until the first result is printed.

    The terminal shows it after `SHORT_S` seconds, and not while a phase runs. The text is erased
    before a write to standard output, and at the end. Logs and pipes get nothing.
    """
    global _wait
    if not _shows_in_place():
        yield
        return
    with _paused(), ExitStack() as ending:
        _wait = wait = _Wait(text)
        ending.callback(wait.hide)
        wait.show()
        with redirect_stdout(cast("TextIO", _ErasingStdout(sys.stdout, wait.hide))):
            yield


class _Wait:
    """A text that a terminal shows in place, and that can be hidden."""

    def __init__(self, text: str) -> None:
        self._text, self._shown = text, ExitStack()

    def show(self) -> None:
        """Show the text after `SHORT_S` seconds."""
        self._shown.enter_context(_in_place(self._text, SHORT_S))

    def hide(self) -> None:
        """Erase the text, or cancel its display."""
        self._shown.close()


_wait: _Wait | None = None
"""The text of `waiting` that the terminal shows while no phase runs."""


@contextmanager
def _paused() -> Iterator[None]:
    """Hide the text of `waiting`, and show it again afterwards."""
    global _wait
    outer, _wait = _wait, None
    if outer:
        outer.hide()
    try:
        yield
    finally:
        _wait = outer
        if outer:
            outer.show()


class _ErasingStdout:
    """Standard output that erases the text of `waiting` before it writes."""

    def __init__(self, stream: TextIO, erase: Callable[[], None]) -> None:
        self._stream, self._erase = stream, erase

    def write(self, text: str) -> int:
        """Erase the text of `waiting`, and write to the stream."""
        self._erase()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _shows_in_place() -> bool:
    return err.is_terminal and not err.is_dumb_terminal and not is_json_log()


@contextmanager
def _in_place(
    text: str, quiet_s: float, unit: str = "", *, has_bar: bool = True
) -> Iterator[ShowDone]:
    # A long text leaves room for the spinner and the time.
    room = Column(max_width=max(err.width - _BESIDE_TEXT, 1), no_wrap=True)
    columns: tuple[ProgressColumn, ...] = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=room),
    )
    progress = Progress(
        *columns, TimeElapsedColumn(), console=err, transient=True, redirect_stdout=False
    )
    task = progress.add_task(text, total=None)

    def start() -> None:
        if not quiet_s:
            step(text)
        progress.start()

    def show_done(done: int, total: int) -> None:
        bar = (BarColumn(),) if has_bar else ()
        counted = (MofNCompleteColumn(), TextColumn(unit)) if unit else (MofNCompleteColumn(),)
        progress.columns = (*columns, *bar, *counted, TimeElapsedColumn())
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

"""Progress of phases on a terminal and in a pipe."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tidemark.cli import output, progress


class _Watched(io.StringIO):
    """A stream that sets an event when its text matches a pattern."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.pattern, self.found = pattern, threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if re.search(self.pattern, self.getvalue()):
            self.found.set()
        return written


def show_on(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, terminal: bool) -> None:
    """Show progress on a stream."""
    console = Console(file=stream, force_terminal=terminal, width=80, _environ={"TERM": "xterm"})
    for module in (output, progress):
        monkeypatch.setattr(module, "err", console)


def run_phase(
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    *,
    terminal: bool,
    done: tuple[int, int] | None = None,
    unit: str = "",
    quiet_s: float = 0.0,
) -> str:
    """Run a phase until its progress matches a pattern, and return the printed text.

    Args:
        monkeypatch: Sets the stream.
        pattern: Pattern of the progress.
        terminal: Whether the stream is a terminal.
        done: How many of how many parts are done; None if the phase has no parts.
        unit: The name of the parts.
        quiet_s: Seconds without output.
    """
    stream = _Watched(pattern)
    show_on(monkeypatch, stream, terminal=terminal)
    monkeypatch.setattr(progress, "REPEAT_S", 0.01)
    with progress.phase("starting Kafka", quiet_s=quiet_s, unit=unit) as show_done:
        if done:
            show_done(*done)
        assert stream.found.wait(20)
    return stream.getvalue()


def test_a_terminal_shows_the_phase_with_its_elapsed_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "\x1b" in run_phase(monkeypatch, r"starting Kafka.*0:00:0\d", terminal=True)


def test_a_pipe_gets_plain_lines_while_a_phase_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = run_phase(monkeypatch, r"(.*Kafka: .*\n){2}", terminal=False).splitlines()
    assert first == "starting Kafka"
    assert len(others) >= 2
    assert all(line.startswith("  starting Kafka: ") for line in others)
    assert all(line.isprintable() for line in others)
    assert capsys.readouterr().out == ""


def test_a_phase_with_parts_shows_how_many_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run_phase(monkeypatch, r"3/1,?200", terminal=True, done=(3, 1200))
    assert "━" in shown
    pattern = r"Kafka: 3 of 1,200, .*\n"
    assert "\x1b" not in run_phase(monkeypatch, pattern, terminal=False, done=(3, 1200))


@pytest.mark.parametrize(("terminal", "shown"), [(True, "3/4 files"), (False, "3 of 4 files, ")])
def test_the_parts_of_a_phase_have_a_name(
    monkeypatch: pytest.MonkeyPatch, shown: str, *, terminal: bool
) -> None:
    text = run_phase(monkeypatch, "files", terminal=terminal, done=(3, 4), unit="files")
    assert shown in re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_phase_that_stays_short_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    stream = io.StringIO()
    show_on(monkeypatch, stream, terminal=terminal)
    with progress.phase("starting Kafka", quiet_s=600) as show_done:
        show_done(1, 2)
    assert "Kafka" not in stream.getvalue()
    assert "starting Kafka" in run_phase(monkeypatch, "Kafka", terminal=terminal, quiet_s=0.01)


def test_a_command_in_a_terminal_shows_its_progress_there_only(tmp_path: Path) -> None:
    """The standard output of the command, here a pipe, gets the JSON only."""
    (tmp_path / "pipelines").mkdir()
    environ = {
        **os.environ,
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
        "TERM": "xterm",
    }
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).parent / "tidemark"), "down", "--json"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdout
        printed = process.stdout.read().decode()
        shown = b"".join(_read_terminal(ours)).decode()
    os.close(ours)
    assert process.returncode == 0, shown
    assert printed.startswith("{")
    assert "\x1b" not in printed
    assert "stopping" not in printed
    assert re.search(r"\x1b.*stopping Airflow.*0:00:0\d", shown, re.DOTALL)


def _read_terminal(fd: int) -> Iterator[bytes]:
    """Yield the output of a terminal until its other end is closed."""
    while True:
        try:
            found = os.read(fd, 65536)
        except OSError:  # Linux reports the closed end as EIO.
            return
        if not found:
            return
        yield found


@pytest.mark.parametrize(
    ("level", "line"), [(logging.INFO, "  a 1"), (logging.ERROR, "error: a 1")]
)
def test_a_log_line_on_a_terminal_is_a_line_of_its_own_above_the_bar(
    monkeypatch: pytest.MonkeyPatch, level: int, line: str
) -> None:
    """It has neither time nor logger."""
    stream = _Watched("3/4")
    show_on(monkeypatch, stream, terminal=True)
    log = logging.getLogger(f"{__name__}.{level}")
    log.setLevel(logging.INFO)
    monkeypatch.setattr(log, "handlers", [output.TerminalHandler()])
    with progress.phase("starting Kafka") as show_done:
        show_done(3, 4)
        assert stream.found.wait(20)
        log.log(level, "a %d", 1)
    rows = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n").split("\n")
    assert line in rows

"""Progress of phases on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import threading

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


def run_phase(monkeypatch: pytest.MonkeyPatch, pattern: str, *, terminal: bool) -> str:
    """Run a phase until its progress matches a pattern, and return the printed text."""
    stream = _Watched(pattern)
    console = Console(file=stream, force_terminal=terminal, width=80, _environ={"TERM": "xterm"})
    for module in (output, progress):
        monkeypatch.setattr(module, "err", console)
    monkeypatch.setattr(progress, "REPEAT_S", 0.01)
    with progress.phase("starting Kafka"):
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

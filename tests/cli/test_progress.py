"""Progress of phases on a terminal and in a pipe."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from rich.console import Console

from tests.support.consoles import app_of
from tests.support.interrupts import processes_with_sigint
from tests.support.typed_lake import home_typed_lake
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.cli import output, progress
from tidemark.cli.engine import on_engine
from tidemark.core.logs import LogFields
from tidemark.core.plan import PlanRef

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))


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
    command = [TIDEMARK, "down", "--json"]
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
    ("level", "verbose", "line"),
    [
        (logging.INFO, False, "  a 1"),
        (logging.ERROR, False, "error: a 1"),
        (logging.INFO, True, r"\d{4}-.* INFO tests\.cli\..*: a 1"),
    ],
)
def test_a_log_line_on_a_terminal_is_a_line_of_its_own_above_the_bar(
    monkeypatch: pytest.MonkeyPatch, level: int, line: str, *, verbose: bool
) -> None:
    """It has neither time nor logger without --verbose."""
    stream = _Watched("3/4")
    show_on(monkeypatch, stream, terminal=True)
    log = logging.getLogger(f"{__name__}.{level}")
    log.setLevel(logging.INFO)
    monkeypatch.setattr(log, "handlers", [output.TerminalHandler(verbose=verbose)])
    with progress.phase("starting Kafka") as show_done:
        show_done(3, 4)
        assert stream.found.wait(20)
        log.log(level, "a %d", 1)
    rows = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n").split("\n")
    assert any(re.fullmatch(line, row) for row in rows)


@pytest.mark.parametrize(
    ("level", "values", "line"),
    [
        (
            logging.INFO,
            {"step": "ingest", "plan": 2, "records": 43},
            "  prices: ingest of plan 2: 43 records, 1.5 s",
        ),
        (
            logging.INFO,
            {"step": "decode", "records": 40, "quarantined": 3},
            "  prices: decode: 40 records, 3 quarantined, 1.5 s",
        ),
        (
            logging.INFO,
            {"step": "upsert", "scope": "new records"},
            "  prices: upsert: new records, 1.5 s",
        ),
        (
            logging.WARNING,
            {"step": "check", "plan": 2, "error": "QualityFailed"},
            "warning: prices: check of plan 2: QualityFailed, 1.5 s",
        ),
    ],
)
def test_a_terminal_shows_a_step_of_a_run_as_text(
    monkeypatch: pytest.MonkeyPatch, level: int, values: Mapping[str, object], line: str
) -> None:
    stream = io.StringIO()
    show_on(monkeypatch, stream, terminal=True)
    log = logging.getLogger("tidemark.app.steps")
    log.setLevel(logging.INFO)
    monkeypatch.setattr(log, "handlers", [output.TerminalHandler()])
    log.log(level, "step ended %s", LogFields({"pipeline": "prices", **values, "seconds": 1.51}))
    assert re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).rstrip() == line


# -- commands that print nothing for a while -------------------------------------------------------

_BEGIN = """
import sys
import types
import tidemark
# The package itself would import all commands, which takes a second.
package = sys.modules["tidemark.cli"] = types.ModuleType("tidemark.cli")
package.__path__ = [f"{path}/cli" for path in tidemark.__path__]
from tidemark.cli import progress
from tidemark.cli.output import err, out, print_until_interrupted
progress.SHORT_S = 0.01
"""


class _Process:
    """A process on a terminal or with pipes, and its output.

    Attributes:
        text: The printed text, with control characters.
    """

    def __init__(self, process: subprocess.Popen[bytes], reader: IO[bytes]) -> None:
        self._process, self._reader, self.text = process, reader, ""

    def read_until(self, pattern: str) -> None:
        """Read until a pattern matches the text that was not read before."""
        begin = len(self.text)
        while not re.search(pattern, self.text[begin:]):
            found = os.read(self._reader.fileno(), 65536)
            assert found, self.text
            assert len(self.text) < 100_000, self.text[-1_000:]
            self.text += found.decode()

    def proceed(self) -> None:
        """Send the line that the process waits for."""
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def interrupt(self) -> None:
        """Send the signal of Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Read the rest, and return the exit code."""
        self.text += b"".join(_read_terminal(self._reader.fileno())).decode()
        return self._process.wait(60)

    def screen(self) -> list[str]:
        """Return the lines that a terminal shows, without empty ones at the end.

        Rich erases a line before it writes the line again, so the column does not matter.
        """
        lines, row = [""], 0
        for control, printed in re.findall(
            r"(\x1b\[[0-9;?]*[A-Za-z]|[\r\n])|([^\x1b\r\n]+)", self.text
        ):
            if control == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif control == "\x1b[1A":
                row -= 1
            elif control == "\x1b[2K":
                lines[row] = ""
            lines[row] += printed
        return "\n".join(lines).rstrip().split("\n")


@contextmanager
def running(
    *command: str, terminal: bool = True, environ: Mapping[str, str] | None = None
) -> Iterator[_Process]:
    """Run a process with both outputs on one terminal or pipe."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    kept = {key: each for key, each in os.environ.items() if not key.startswith("TIDEMARK")}
    with processes_with_sigint():
        process = subprocess.Popen(
            command,
            env={**kept, "TERM": "xterm", "COLUMNS": "80", **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=theirs,
        )
    os.close(theirs)
    with open(ours, "rb", buffering=0) as reader, process:
        try:
            yield _Process(process, reader)
        finally:
            process.kill()


@contextmanager
def running_code(code: str, *, terminal: bool = True) -> Iterator[_Process]:
    """Run Python code; `sys.stdin.readline()` waits for `_Process.proceed`."""
    with running(sys.executable, "-c", _BEGIN + code, terminal=terminal) as process:
        yield process


_WAITS = """
with progress.waiting("reading topic orders"):
    sys.stdin.readline()
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [('out.print("a")', 0), ('sys.stdout.write("a\\n")', 0), ('sys.exit("a")', 1)],
)
def test_a_terminal_shows_what_a_command_does_until_it_prints_or_fails(end: str, code: int) -> None:
    with running_code(_WAITS.format(end=end)) as process:
        process.read_until(r"reading topic orders.*0:00:0\d")
        process.proceed()
        assert process.end() == code
    assert process.screen() == ["a"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_fast_command_and_a_pipe_show_nothing(*, terminal: bool) -> None:
    begin = f"progress.SHORT_S = {600 if terminal else 0}"
    code = begin + _WAITS.format(end='out.print("a")')
    with running_code(code, terminal=terminal) as process:
        process.proceed()
        assert process.end() == 0
    assert process.text.split() == ["a"]


def test_a_phase_hides_what_its_command_does() -> None:
    code = """
with progress.waiting("planning"):
    sys.stdin.readline()
    with progress.phase("ingest", unit="tasks") as show_done:
        show_done(1, 4)
        sys.stdin.readline()
    sys.stdin.readline()
    out.print("a")
"""
    with running_code(code) as process:
        process.read_until("planning.*0:00:0")
        process.proceed()
        process.read_until("1/4.* tasks.*0:00:0")
        line, bar = process.screen()
        assert line == "ingest"
        assert re.search("ingest .*1/4 tasks", bar)
        process.proceed()
        process.read_until("planning.*0:00:0")
        line, text = process.screen()
        assert line == "ingest"
        assert "planning" in text
        process.proceed()
        assert process.end() == 0
    assert process.screen() == ["ingest", "a"]


def test_a_phase_within_a_phase_has_a_bar_below_it() -> None:
    code = """
with progress.phase("backfill", unit="chunks") as show_chunks:
    show_chunks(3, 12)
    with progress.phase("ingest", unit="Spark tasks") as show_done:
        show_done(1, 4)
        sys.stdin.readline()
    sys.stdin.readline()
"""
    with running_code(code) as process:
        process.read_until("1/4.*Spark tasks.*0:00:0")
        *steps, outer, inner = process.screen()
        assert steps == ["backfill", "ingest"]
        assert re.search(r"backfill .*━.* 3/12 chunks", outer)
        assert re.search(r"ingest .*━.* 1/4 Spark tasks", inner)
        process.proceed()
        process.read_until("backfill.*0:00:0")
        process.proceed()
        assert process.end() == 0
    assert process.screen() == ["backfill", "ingest"]


def test_updates_in_place_are_not_disturbed() -> None:
    """`status --watch` shows the text of `waiting` only before its first update."""
    code = """
looks = iter(range(1, 9))
def look():
    sys.stdin.readline()
    return f"update {next(looks)}"
with progress.waiting("reading the lag"):
    print_until_interrupted(look, 0.01, in_place=True)
"""
    with running_code(code) as process:
        process.read_until("reading the lag.*0:00:0")
        for number in (1, 2, 3):
            process.proceed()
            process.read_until(f"update {number}")
            assert process.screen() == [f"update {number}"]
        process.interrupt()
        assert process.end() == 0
    assert process.text.rpartition("reading the lag")[2].count("update") >= 3


@pytest.mark.slow
def test_ctrl_c_leaves_no_phase_of_a_command(tmp_path: Path) -> None:
    """A broker that does not answer makes the command slow."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        connection = {connection_variable("kafka_default"): kafka_connection(f"127.0.0.1:{port}")}
        environ = {**connection, "TIDEMARK_HOME": str(tmp_path)}
        with running(TIDEMARK, "topics", "describe", "orders", environ=environ) as process:
            process.read_until("reading topic orders.*0:00:0")
            process.interrupt()
            assert process.end() == 128 + signal.SIGINT
    assert process.screen() == [""]
    assert process.text.count("\x1b[?25l") == process.text.count("\x1b[?25h") == 1


@pytest.mark.slow
def test_after_ctrl_c_a_command_names_its_continuation(tmp_path: Path) -> None:
    specs = tmp_path / "pipelines"
    specs.mkdir()
    (specs / "orders.yaml").write_text('name: orders\ntopic: orders\nschedule: "@daily"\n')
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        environ = {
            connection_variable("kafka_default"): kafka_connection(f"127.0.0.1:{port}"),
            "TIDEMARK_HOME": str(tmp_path),
            "TIDEMARK_PIPELINES": str(specs),
        }
        with running(TIDEMARK, "ingest", "orders", environ=environ) as process:
            process.read_until("planning orders.*0:00:0")
            process.interrupt()
            assert process.end() == 128 + signal.SIGINT
    assert process.screen()[-1].strip().startswith("Interrupted. Landed rows stay.")
    assert "Traceback" not in process.text


def test_a_text_longer_than_the_terminal_leaves_room_for_the_time() -> None:
    slow = "from tidemark.cli import progress\nwith progress.phase('x' * 200): input()"
    with running(sys.executable, "-c", slow) as process:
        process.read_until("x{20}….*0:00:0")


def test_a_job_of_spark_shows_its_tasks_without_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query adds tasks, so a bar would go back."""
    program = tmp_path / "spark-submit"
    program.write_text(
        '#!/bin/sh\nprintf "[Stage 0:=====>     (1 + 3) / 5]\\r"\n'
        'echo \'TIDEMARK_RESULT [{"pipeline": "events", "plan": 1}]\'\n'
    )
    program.chmod(0o755)
    home_typed_lake(tmp_path)
    app = app_of(tmp_path)()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    stream = io.StringIO()
    show_on(monkeypatch, stream, terminal=True)
    plan = PlanRef(pipeline="events", sequence=1)
    on_engine(app, "local[1]", ["events"]).execute("check", [plan])
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert re.search(r"check of events +1/5 Spark tasks 0:00:0\d", shown)
    assert "━" not in shown

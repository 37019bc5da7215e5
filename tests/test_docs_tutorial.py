"""Tests that the commands of docs/tutorial.md print the results that the page shows.

The test runs no commands of the section about Airflow and of later sections:
tests/cli/test_demo.py and tests/cli/test_local.py start and stop Airflow. tests/test_setup.py runs
`make setup`. tests/cli/test_console.py runs `tidemark console`, which does not end by itself.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.commands import Command, in_process
from tidemark.core.errors import ExitCode
from tidemark.spark.engine import TOKEN_VARIABLE, Server
from tidemark.spark.sockets import free_ports

PAGE = PROJECT / "docs" / "tutorial.md"
_LAST_HEADING = "## The same with Airflow"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^([^\n]+?)(?: <<'EOF'\n(.*?)^EOF)?$", re.MULTILINE | re.DOTALL)
_EXIT_CODE = re.compile(r"# ends with exit code (\d+)")
_NOT_RUN = re.compile(r"make setup|export PATH=|tidemark console$")
_VARIES = re.compile(r"runway| d \d+ h|^topic |fix |^\.\.\.$")
"""Lines of the page with a time, an id or a path of the reader's machine."""


class Reader:
    """Runs the commands of the page, with a separate port for the broker."""

    def __init__(self, tidemark: Command, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tidemark = tidemark
        self._port = port
        self._monkeypatch = monkeypatch
        self._printed = ""
        self.missing: list[str] = []

    def follow(self, kind: str, text: str) -> None:
        """Run the commands of a block, or compare the output of the commands before it."""
        if kind == "":
            shown = [each for each in text.splitlines() if not _VARIES.search(each)]
            self.missing += [each for each in shown if not self._is_printed(each)]
            return
        self._printed = ""
        for line, given in [("tidemark sql", text)] if kind == "sql" else _COMMAND.findall(text):
            self._run(line, given)

    def _run(self, line: str, given: str) -> None:
        words = shlex.split(line, comments=True)
        if not words or _NOT_RUN.match(shlex.join(words)) or _NOT_RUN.match(line):
            return
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], input=given, text=True, check=True)
            return
        assert words[0] == "tidemark", line
        if words[1:] == ["broker", "start"]:
            words += ["--port", str(self._port)]
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        ran = self._tidemark(*words[1:])
        wanted = _EXIT_CODE.search(line)
        code = int(wanted[1]) if wanted else ExitCode.OK
        assert ran.code == code, (line, ran.out, ran.err)
        self._printed += ran.out + ran.err

    def _is_printed(self, line: str) -> bool:
        """Return whether the commands printed a line with all words of this line, in this order.

        The printed line may have frames and more columns.
        """
        printed = (iter(_words(each)) for each in self._printed.splitlines())
        return any(all(word in rest for word in _words(line)) for rest in printed)


def _words(line: str) -> list[str]:
    return re.findall(r"[^\s│┃]+", line)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.e2e
def test_s11_s23_the_commands_of_the_tutorial_print_the_results_that_the_page_shows(
    connect_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page starts a separate broker. Spark is the server of the tests."""
    environ = {
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_MASTER": f"sc://{connect_server.host}:{connect_server.port}",
        TOKEN_VARIABLE: connect_server.token,
        "COLUMNS": "200",
    }
    tidemark = in_process(environ, monkeypatch, capsys)
    (port,) = free_ports("127.0.0.1", 1)
    reader = Reader(tidemark, port, monkeypatch)
    text, heading, _ = PAGE.read_text(encoding="utf-8").partition(_LAST_HEADING)
    assert heading
    try:
        for kind, block in _BLOCK.findall(text):
            reader.follow(kind, block)
    finally:
        assert tidemark("broker", "stop").code == ExitCode.OK
    assert reader.missing == []

"""Detached processes can be found again and stopped with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemark.spark import processes
from tidemark.spark.processes import DetachedProcess

Script = Callable[[str], DetachedProcess]


def wait_until(held: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not held():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Return a function that runs a shell script detached; kill remaining processes at the end."""
    sessions: list[int] = []

    def run(text: str) -> DetachedProcess:
        started = processes.spawn_detached(
            ["/bin/sh", "-c", text], tmp_path / "log", env={"WORD": "hello"}, cwd=tmp_path
        )
        sessions.append(started.session)
        return started

    yield run
    for session in sessions:
        for pid in processes.session_members(session):
            os.kill(pid, signal.SIGKILL)


def test_a_detached_process_is_no_child_and_writes_its_output_to_the_log(
    script: Script, tmp_path: Path
) -> None:
    """It has the given environment and folder, and no terminal."""
    log = tmp_path / "log"
    started = script('echo "$WORD from $PWD"; read line || echo no input >&2; exec sleep 600')
    wait_until(lambda: "no input" in processes.read_log(log))
    assert processes.last_lines(log) == f"hello from {tmp_path}\nno input"
    assert os.getsid(started.pid) == started.session != os.getsid(0)
    assert processes.runs_in_session(started.pid, started.session)
    with pytest.raises(ChildProcessError):
        os.waitpid(started.pid, os.WNOHANG)


def test_a_restart_keeps_the_previous_log(script: Script, tmp_path: Path) -> None:
    """The log may contain the reason for the restart."""
    log = tmp_path / "log"
    script("echo first")
    wait_until(lambda: processes.read_log(log) == "first\n")
    script("echo second")
    wait_until(lambda: processes.read_log(log) == "second\n")
    assert processes.read_log(tmp_path / "log.1") == "first\n"


def test_session_members_include_other_process_groups(script: Script) -> None:
    """Stopping them ends all."""
    session = script("set -m; sleep 600 & sleep 600 & wait").session
    wait_until(lambda: len(processes.session_members(session)) == 3)
    processes.stop("the script", lambda: processes.session_members(session), timeout_s=10)
    assert processes.session_members(session) == ()


def test_a_session_with_a_running_leader_has_no_members() -> None:
    """The session of a detached process has no leader, so this one reuses its id."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as stranger:
        assert os.getsid(stranger.pid) == stranger.pid
        assert processes.session_members(stranger.pid) == ()
        assert not processes.runs_in_session(stranger.pid, stranger.pid)
        stranger.communicate(b"\n")


def test_a_process_that_ignores_sigterm_gets_sigkill(script: Script, tmp_path: Path) -> None:
    """SIGKILL follows after the timeout."""
    session = script("trap '' TERM; echo ready; while :; do sleep 0.1; done").session
    wait_until(lambda: "ready" in processes.read_log(tmp_path / "log"))
    begun = time.monotonic()
    processes.stop("the script", lambda: processes.session_members(session), timeout_s=0.5)
    assert time.monotonic() - begun >= 0.5
    assert processes.session_members(session) == ()


def test_a_zombie_does_not_run() -> None:
    """A zombie waits for its parent to read its exit code."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "mark"], stdin=subprocess.PIPE
    ) as child:
        # Between fork and exec the arguments are this process's own.
        wait_until(lambda: processes.runs_with(child.pid, "mark"))
        session = os.getsid(child.pid)
        assert processes._is_running(child.pid)
        child.kill()
        # An ending process first loses its arguments, and becomes a zombie later.
        wait_until(lambda: not processes._is_running(child.pid))
        assert not processes.runs_with(child.pid, "mark")
        assert not processes.runs_in_session(child.pid, session)
        assert child.returncode is None


def test_a_missing_log_is_reported_as_empty(tmp_path: Path) -> None:
    """An error never ends in an empty text."""
    assert processes.last_lines(tmp_path / "none") == "an empty log"

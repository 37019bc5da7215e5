"""Detached processes: start, find, stop, and read their logs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidemark.core.errors import SetupError
from tidemark.core.texts import listed

POLL_S = 0.05
"""Pause between two checks of a process or a port, in seconds."""

# `$$` is the process id of the shell and the id of its session.
_DETACH = 'exec 3>"$1"; shift; "$@" </dev/null >&3 2>&3 3>&- & echo $$ $!'


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedProcess:
    """A process that outlives the process that started it.

    Attributes:
        pid: Process id.
        session: Id of the operating system's session with the process and all its descendants.
    """

    pid: int
    session: int


def spawn_detached(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> DetachedProcess:
    """Start a process that outlives this one, in a new session.

    A shell starts the process and exits, so the process becomes a child of init. This process need
    not wait for it, and every process of this user can stop it in the same way.

    Args:
        command: Program and arguments.
        log: File for the output; the file of the previous start is renamed to `.1`.
        env: Environment; None for the environment of this process.
        cwd: Working folder; None for the working folder of this process.
    """
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    shell = subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", str(log), *command],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
    )
    session, pid = map(int, shell.stdout.split())
    return DetachedProcess(pid=pid, session=session)


def runs_with(pid: int, argument: str) -> bool:
    """Return whether the process runs and was started with this argument.

    The argument distinguishes the process from a later one with the same id.
    """
    with suppress(psutil.Error):
        return argument in psutil.Process(pid).cmdline()
    return False


def runs_in_session(pid: int, session: int) -> bool:
    """Return whether the process runs and belongs to the session of a detached process.

    The session distinguishes the process from a later one with the same id. The leader of the
    session was the shell, which has exited; a running leader has started a later session with the
    same id.
    """
    return _session(pid) == session and _is_running(pid) and not _is_running(session)


def session_members(session: int) -> tuple[int, ...]:
    """Return the ids of the running processes in the session of a detached process."""
    if _is_running(session):
        return ()
    return tuple(pid for pid in psutil.pids() if _session(pid) == session and _is_running(pid))


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def _is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return False


def stop(name: str, running: Callable[[], Sequence[int]], *, timeout_s: float) -> None:
    """End processes by SIGTERM, and by SIGKILL after a timeout; return when all have ended.

    Args:
        name: Name of the processes, at the start of the error's first sentence.
        running: Returns the ids of those that still run; they get signals in this order.
        timeout_s: Seconds between the two signals.

    Raises:
        SetupError: A process survives SIGKILL.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in running():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _all_end(running, time.monotonic() + timeout_s):
            return
    raise SetupError(
        finding=f"{name} does not stop.",
        needed="no process after SIGTERM and SIGKILL",
        seen=listed("process id", running()),
        advice="Check the processes with ps: a process in state D waits for the disk.",
    )


def _all_end(running: Callable[[], Sequence[int]], deadline: float) -> bool:
    while running():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def read_log(log: Path) -> str:
    """Return the output of a detached process; empty if the log does not exist."""
    if not log.exists():
        return ""
    return log.read_text(encoding="utf-8", errors="replace")


def last_lines(log: Path, *, lines: int = 12) -> str:
    """Return the end of the output of a detached process."""
    return "\n".join(read_log(log).splitlines()[-lines:]) or "an empty log"

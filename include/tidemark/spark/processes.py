"""Processes that outlive the one that starts them: started, told apart, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidemark.core.errors import SetupError

POLL_S = 0.05
"""Pause between two looks at a process or a port, seconds."""

_PROC = Path("/proc")
# `$$` is the shell's process id, which names the session.
_DETACH = 'exec 3>"$1"; shift; "$@" </dev/null >&3 2>&3 3>&- & echo $$ $!'


# -- start ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedProcess:
    """A process that was started and let go.

    Attributes:
        pid: Its process id.
        session: The session of the operating system that holds it and all that it starts.
        started: Its `start_time`; "" if it ended at once.
    """

    pid: int
    session: int
    started: str


def spawn_detached(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> DetachedProcess:
    """Start a process that outlives this one, in a session of its own.

    A shell stands between and leaves at once, so the process belongs to init: nobody has to wait
    for it, and every process of this user can stop it in the same way.

    Args:
        command: Program and arguments.
        log: File for what it prints; the last one is kept beside it.
        env: Its environment; this process's own by default.
        cwd: Its working folder; this process's own by default.
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
    return DetachedProcess(pid=pid, session=session, started=start_time(pid))


# -- telling apart -------------------------------------------------------------------------------


def runs_with(pid: int, argument: str) -> bool:
    """Whether `pid` lives and was started with `argument`; never true of a reused process id."""
    return argument in _arguments(pid)


def start_time(pid: int) -> str:
    """When a process started, which tells it from a later one of the same id; "" if it is dead."""
    if (_PROC / "self").exists():
        with suppress(OSError):
            # The name in parentheses may hold spaces; state is the first field after it, the
            # start time in clock ticks the twentieth (proc_pid_stat(5)).
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return "" if fields[0] in {"Z", "X"} else fields[19]
        return ""
    state, _, started = _ps("-o", "stat=,lstart=", "-p", str(pid)).strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()


def is_running(pid: int, started: str) -> bool:
    """Return whether the process with this start time still runs; False for an empty start time."""
    return bool(started) and start_time(pid) == started


def session_members(session: int) -> tuple[int, ...]:
    """Living processes of the session of a detached process.

    Its leader was the shell, which is gone; a living leader leads a later session of the same id.
    """
    if start_time(session):
        return ()
    return tuple(pid for pid in _pids() if _session(pid) == session and start_time(pid))


def _arguments(pid: int) -> Sequence[str]:
    if (_PROC / "self").exists():
        with suppress(OSError):
            return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return ()
    return _ps("-ww", "-o", "command=", "-p", str(pid)).split()


def _pids() -> Sequence[int]:
    if (_PROC / "self").exists():
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [int(line) for line in _ps("-A", "-o", "pid=").split()]


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout


# -- stop ----------------------------------------------------------------------------------------


def stop(name: str, living: Callable[[], Sequence[int]], *, timeout_s: float) -> None:
    """End processes: SIGTERM, a deadline, SIGKILL; return when all are gone.

    Args:
        name: What they are, for the error.
        living: Looks which of them live; they are signalled in this order.
        timeout_s: Seconds between the two signals.

    Raises:
        SetupError: A process survives SIGKILL.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in living():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _gone(living, time.monotonic() + timeout_s):
            return
    raise SetupError(
        subject=f"{name} does not stop",
        needed="no process after SIGTERM and SIGKILL",
        seen=f"process(es) {', '.join(map(str, living()))}",
        advice="look at them with ps: a process in state D waits for the disk",
    )


def _gone(living: Callable[[], Sequence[int]], deadline: float) -> bool:
    while living():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


# -- logs ----------------------------------------------------------------------------------------


def read_log(log: Path) -> str:
    """What the process of this log has printed; nothing if there is no log."""
    if not log.exists():
        return ""
    return log.read_text(encoding="utf-8", errors="replace")


def last_lines(log: Path, *, lines: int = 12) -> str:
    """The end of what the process of this log has printed."""
    return "\n".join(read_log(log).splitlines()[-lines:]) or "an empty log"

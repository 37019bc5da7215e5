"""Processes, ports and log files of the embedded broker, as the operating system sees them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tidemark.errors import SetupError

POLL_S = 0.05
"""Pause between two looks at a process or a port, seconds."""

_ERROR = re.compile(r" (ERROR|FATAL) |^Exception in |^Error|^Terminating")
_STACK_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")
_DETACH = 'exec 3>"$1"; shift; "$@" </dev/null >&3 2>&3 3>&- & echo $!'


def spawn_detached(command: Sequence[str], log: Path) -> int:
    """Start a process that outlives this one, and return its process id.

    A shell stands between and leaves at once, so the process belongs to init: nobody has to wait
    for it, and every process of this user can stop it in the same way.
    """
    started = subprocess.run(
        ["/bin/sh", "-c", _DETACH, "sh", str(log), *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
    )
    return int(started.stdout)


def runs(pid: int, argument: str) -> bool:
    """Whether `pid` lives and was started with `argument`; never true of a reused process id."""
    return argument in _arguments(pid)


def _arguments(pid: int) -> Sequence[str]:
    proc = Path("/proc")
    if (proc / "self").exists():
        with suppress(OSError):
            return (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return ()
    listing = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listing.stdout.split()


def stop_processes(pids: Mapping[int, str], *, timeout_s: float) -> None:
    """End processes in order: SIGTERM, a deadline, SIGKILL; return when all are gone.

    Args:
        pids: Process ids, each with the argument that proves that the process is the meant one.
        timeout_s: Seconds between the two signals.
    """
    for number, patience in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)):
        for pid, argument in pids.items():
            if runs(pid, argument):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        if _gone(pids, time.monotonic() + patience):
            return
    left = [pid for pid, argument in pids.items() if runs(pid, argument)]
    raise SetupError(
        subject="the embedded broker does not stop",
        needed="no process after SIGTERM and SIGKILL",
        seen=f"process(es) {', '.join(map(str, left))}",
        advice="look at them with ps: a process in state D waits for the disk",
    )


def _gone(pids: Mapping[int, str], deadline: float) -> bool:
    while any(runs(pid, argument) for pid, argument in pids.items()):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As Java does it: connections that wait out their end (TIME_WAIT) are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def accepts(host: str, port: int) -> bool:
    """Whether somebody listens on the port."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def free_ports(host: str, count: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def require_free(host: str, ports: Iterable[int]) -> None:
    """Refuse a port that somebody else has.

    Raises:
        SetupError: Naming the port.
    """
    for port in ports:
        if not is_free(host, port):
            raise port_taken(port)


def port_taken(port: int) -> SetupError:
    """The error that names a busy port."""
    return SetupError(
        subject=f"port {port} is taken",
        needed=f"a free port {port} for the embedded broker",
        seen="another process that listens on it",
        advice="stop that process, or choose another port (0 takes a free one)",
    )


def rotate(log: Path) -> None:
    """Keep the last log beside a new one."""
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))


def last_words(log: Path) -> str:
    """Why the process that wrote this log died: see `complaint`."""
    if not log.exists():
        return "no log"
    return complaint(log.read_text(encoding="utf-8", errors="replace"))


def complaint(text: str, *, lines: int = 3) -> str:
    """The lines of a program's output that say why it gave up: the first error, else the end."""
    told = [line for line in text.splitlines() if line.strip() and not _STACK_FRAME.match(line)]
    wrong = (number for number, line in enumerate(told) if _ERROR.search(line))
    first = next(wrong, max(0, len(told) - lines))
    return "; ".join(told[first : first + lines]) or "no word about it"

"""Wall-clock and processor seconds of this machine's processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidemark.spark.processes import last_lines


@dataclass(slots=True)
class Stopwatch:
    """Measured times of a block; both are 0 until the block has ended."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Return both times by name."""
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}


def cpu_of_tree(pid: int) -> float:
    """Return the processor seconds of a process and its descendants so far, user and system."""
    process = psutil.Process(pid)
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def timed(cpu: Callable[[], float]) -> Iterator[Stopwatch]:
    """Time a block; `cpu` reads the processor seconds used so far."""
    watch = Stopwatch()
    cpu_before, before = cpu(), time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - before
    watch.cpu_seconds = cpu() - cpu_before


class CommandFailed(Exception):
    """A measured process ended with an exit code other than 0."""

    def __init__(self, command: Sequence[str], code: int, log: Path) -> None:
        self.command, self.code, self.log = tuple(command), code, log
        super().__init__(f"{Path(command[0]).name} ended with exit code {code}: {last_lines(log)}")


def run_process(
    command: Sequence[str], log: Path, environ: Mapping[str, str], cwd: Path | None = None
) -> Stopwatch:
    """Run a process, and return the times that it and its descendants took.

    Args:
        command: Program and arguments.
        log: File for the output of the process.
        environ: Variables that override those of this process.
        cwd: Working directory; None for the working directory of this process.

    Raises:
        CommandFailed: The exit code is not 0.
    """
    with log.open("w") as output:
        before = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environ},
            cwd=cwd,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        seconds = time.perf_counter() - before
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise CommandFailed(command, process.returncode, log)
    return Stopwatch(seconds=seconds, cpu_seconds=usage.ru_utime + usage.ru_stime)

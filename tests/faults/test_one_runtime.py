"""Tests that threads of one process, which share the runtime of delta-rs, do not deadlock."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.file_lake import FileLake

pytestmark = pytest.mark.faults

REPLACEMENTS = 30


def test_replacements_beside_queries_in_other_threads_do_not_deadlock(tmp_path: Path) -> None:
    """Runs in another process, because no Python code runs in a process that hangs."""
    command = [sys.executable, "-m", "tests.faults.test_one_runtime", str(tmp_path)]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=400)


def replace_beside_queries(root: Path) -> None:
    lake, stop = FileLake(root), threading.Event()
    lake.run(6)

    def queries() -> None:
        while not stop.is_set():
            lake.control.summary("events")
            lake.table.row_ranges()

    threads = [threading.Thread(target=queries) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(REPLACEMENTS):
            lake.land_again((0, number % 4, number % 4 + 2), requested_by=f"test {number}")
    finally:
        stop.set()
    for thread in threads:
        thread.join()
    lake.verify.verify().check()


if __name__ == "__main__":
    replace_beside_queries(Path(sys.argv[1]))

"""Tests of files and locks that processes share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidemark.delta.local_files import locked, read_json, replace_text

HOLDER = """
import sys
from pathlib import Path
from tidemark.delta.local_files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_replacing_a_file_leaves_no_other_file(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "state.json"
    assert read_json(file) is None
    for text in ('{"pid": 1}', '{"pid": 22}'):
        replace_text(file, text)
        assert file.read_text() == text
    assert read_json(file) == {"pid": 22}
    assert list(file.parent.iterdir()) == [file]


def test_a_lock_is_acquired_once_its_holder_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waited: list[int] = []

        def kill_holder() -> None:
            waited.append(holder.pid)
            holder.kill()

        with locked(lock, waiting=kill_holder):
            assert waited == [holder.pid]
    with locked(lock, waiting=kill_holder):
        assert len(waited) == 1

"""Disks that are full, small or read-only, for root on Linux."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory at a new folder; skip the test without the right to mount."""
    folder.mkdir(exist_ok=True)
    with _mount(["-t", "tmpfs", "-o", options, "tmpfs", str(folder)], folder):
        yield folder


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only; skip the test without the right to mount."""
    with _mount(["-o", "bind,ro", str(folder), str(folder)], folder):
        yield


@contextmanager
def _mount(arguments: list[str], folder: Path) -> Iterator[None]:
    made = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"mount: {made.stderr}")
    try:
        yield
    finally:
        # Spark may still have a file of a failed task open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

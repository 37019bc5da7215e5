"""Commands whose tables cannot be read or written end in a named error; no Spark, no Kafka."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.file_lake import HomeFileLake, home_lake
from tidemark.errors import ExitCode


@contextmanager
def _without_room() -> Iterator[None]:
    """Let this process write no byte to a file, whatever its user and the file system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def lake(tmp_path: Path) -> HomeFileLake:
    """Pipeline `events`: plans 1 to 3 have landed, 4 is open."""
    lake = home_lake(tmp_path)
    lake.plan(1)
    return lake


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "events"),
        ("ingest", "events"),
        ("undo", "events", "--plan", "1", "--reason", "test"),
        ("abandon", "events", "--plan", "4", "--reason", "test"),
    ],
    ids=" ".join,
)
def test_a_command_that_cannot_write_names_the_cause_in_its_first_line(
    lake: HomeFileLake, offline: Command, command: tuple[str, ...]
) -> None:
    """The same as text and as JSON, with an exit code that docs/cli.md has; nothing is recorded."""
    before = lake.ledger
    with _without_room():
        shown, record = offline(*command), offline(*command, "--json")
    first = shown.err.splitlines()[0]
    assert "StorageRefused: " in first
    assert str(lake.root) in first
    assert "File too large" in first
    assert "Traceback" not in shown.err
    assert shown.code == record.code == ExitCode.REFUSED
    (error,) = record.json if isinstance(record.json, list) else [record.json]
    assert error["error"] == "StorageRefused"
    assert error["found"] == "File too large"
    assert lake.ledger == before

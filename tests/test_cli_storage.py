"""Commands that cannot read or write a table end in a named error; no Spark, no Kafka."""

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


@pytest.mark.parametrize("place", ["control", "control/offset_ranges"])
def test_a_file_in_the_place_of_the_control_table_is_no_empty_ledger(
    lake: HomeFileLake, offline: Command, place: str
) -> None:
    """A pipeline that took it for one would begin again and land every record twice."""
    (lake.root / place).rename(lake.root / "aside")
    (lake.root / place).touch()
    for command in (
        ("plan", "events"),
        ("ingest", "events"),
        ("undo", "events", "--plan", "1", "--reason", "test"),
        ("abandon", "events", "--plan", "4", "--reason", "test"),
        ("status", "events"),
    ):
        shown, record = offline(*command), offline(*command, "--json")
        first = shown.err.splitlines()[0]
        assert "StorageRefused: " in first
        assert "Not a directory" in first
        assert shown.code == record.code == ExitCode.REFUSED
        (error,) = record.json if isinstance(record.json, list) else [record.json]
        assert error["error"] == "StorageRefused"


def test_a_decision_that_cannot_be_recorded_names_the_cause(
    lake: HomeFileLake, offline: Command
) -> None:
    """The verdict table is another table than those of records and plans."""
    with _without_room():
        release = ("verdict", "release", "events", "--plan", "1", "--reason", "test")
        shown, record = offline(*release), offline(*release, "--json")
    assert shown.err.startswith("StorageRefused: ")
    assert str(lake.root / "quality" / "verdicts") in shown.err.splitlines()[0]
    assert (record.code, record.json["found"]) == (ExitCode.REFUSED, "File too large")


@pytest.mark.usefixtures("lake")
def test_maintenance_that_cannot_write_names_the_cause_for_each_table(offline: Command) -> None:
    """Tables that are not there yet are no failures."""
    with _without_room():
        maintained = offline("maintain", "events", "--json")
    failed = {each["table"]: each for each in maintained.json["tables"] if "error" in each}
    assert failed.keys() == {"events", "control table"}
    assert {each["error"] for each in failed.values()} == {"StorageRefused"}
    assert {each["found"] for each in failed.values()} == {"File too large"}
    assert maintained.code == ExitCode.REFUSED


@pytest.mark.broker
def test_status_shows_what_it_read_where_it_cannot_record_it(
    lake: HomeFileLake, tidemark: Command
) -> None:
    """The error comes after the pipelines; without --record nothing is written at all."""
    with _without_room():
        looked = tidemark("status", "events", "--json")
        shown = tidemark("status", "events", "--record")
        record = tidemark("status", "events", "--record", "--json")
    (seen,) = looked.json
    assert (seen["pipeline"], seen["records"], seen["open_plans"]) == ("events", 9, [4])
    assert "events" in shown.out
    assert "StorageRefused: writing the status table failed at " in shown.err
    assert str(lake.root) in shown.err
    again, error = record.json
    assert (again["pipeline"], again["records"]) == ("events", 9)
    assert (error["error"], error["found"]) == ("StorageRefused", "File too large")
    assert shown.code == record.code == ExitCode.REFUSED

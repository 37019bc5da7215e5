"""`tidemark maintain`, on tables without Spark and without a broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.commands import Command, CommandResult
from tests.support.file_lake import FileLake, home_lake
from tidemark.core.errors import ExitCode
from tidemark.local.failpoints import VARIABLE

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Two pipelines, one without a table."""
    return home_lake(tmp_path)


def tables(ran: CommandResult) -> dict[str, dict[str, Any]]:
    """Return the record of each table."""
    return {each["table"]: each for each in ran.json["tables"]}


SHARED = [
    *("control table", "quality results", "status table"),
    *("schemas table", "status history"),
]


def test_all_tables_are_maintained_and_reported(lake: FileLake, offline: Command) -> None:
    """A dry run changes nothing; each table is in the progress and in the result."""
    version = DeltaTable(lake.uri).version()
    shown = offline("maintain", "--dry-run", "--json")
    assert (shown.code, DeltaTable(lake.uri).version()) == (ExitCode.OK, version)
    assert {name: each["outcome"] for name, each in tables(shown).items()} == {
        **dict.fromkeys(["idle", *SHARED], "no table yet"),
        **dict.fromkeys(["events", "control table"], "draft"),
    }
    done = offline("maintain")
    assert done.code == ExitCode.OK, done.err
    for name in tables(shown):
        assert f"{name}: " in done.err
        assert name in done.out
    assert "0 pages of Data Docs removed" in done.out
    assert len(DeltaTable(lake.uri).file_uris()) == 1
    assert lake.verified() == [(9, 9)]
    again = offline("maintain", "events", "--json")
    assert list(tables(again)) == ["events", *SHARED]
    assert tables(again)["events"]["files_replaced"] == 0
    assert again.json["data_docs"] == {"pages_removed": 0}


def test_a_refused_table_does_not_stop_the_others(lake: FileLake, offline: Command) -> None:
    """The exit code and the result contain the refusal, with the name of the table."""
    DeltaTable(lake.uri).restore(1)
    unknown = offline("maintain", "events", "nope", "--json")
    assert unknown.json["error"] == "UnknownPipeline"
    refused = offline("maintain", "events", "idle", "--json")
    assert refused.code == ExitCode.REFUSED
    assert tables(refused)["events"]["error"] == "TableBehindLedger"
    assert tables(refused)["idle"]["outcome"] == "no table yet"
    assert tables(refused)["control table"]["outcome"] == "maintained"
    shown = offline("maintain", "events", "--keep-hours", "24")
    assert shown.code == ExitCode.REFUSED
    assert "events: RetentionTooShort" in shown.err


@pytest.mark.parametrize("option", ["--keep-hours", "--keep-docs-days"])
def test_a_retention_of_more_than_a_century_is_a_usage_error(
    lake: FileLake, offline: Command, option: str
) -> None:
    version = DeltaTable(lake.uri).version()
    for number in (10**8, 10**12):
        refused = offline("maintain", "events", option, str(number))
        assert refused.code == ExitCode.USAGE
        assert option in refused.err
    assert DeltaTable(lake.uri).version() == version


@pytest.mark.parametrize(
    "at",
    [
        "maintenance.compact:after:1",
        pytest.param("maintenance.remove_unreferenced:before:1", marks=pytest.mark.faults),
        pytest.param("maintenance.remove_unreferenced:after:1", marks=pytest.mark.faults),
    ],
)
def test_maintenance_that_is_killed_can_be_repeated(
    lake: FileLake, offline: Command, at: str
) -> None:
    """I1: the table is exact after a kill at any step, and the same command then succeeds."""
    program = str(Path(sys.executable).with_name("tidemark"))
    killed = subprocess.run(
        [program, "maintain", "events"],
        env={**os.environ, VARIABLE: at},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert lake.verified() == [(9, 9)]
    assert offline("maintain").code == ExitCode.OK
    lake.run(1)
    assert lake.verified() == [(10, 10)]
    assert len(DeltaTable(lake.uri).file_uris()) == 2

"""`tidemark maintain`, on tables without Spark and without a broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import FileLake, home_lake
from tidemark import cli
from tidemark.core.errors import ExitCode
from tidemark.dev.failpoints import VARIABLE


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileLake:
    """Two pipelines, one without a table."""
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path / "pipelines"))
    return home_lake(tmp_path)


class CommandResult:
    """What a command came to."""

    def __init__(self, code: Any, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """What it reports of each table."""
        return {each["table"]: each for each in json.loads(self.out)["tables"]}


@pytest.fixture
def maintain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command in this process, as its entry point does."""

    def run(*arguments: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["tidemark", "maintain", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return CommandResult(ended.value.code or 0, printed.out, printed.err)

    return run


SHARED = [
    "control table",
    "quality results",
    "publication decisions",
    "status table",
    "schemas table",
]


def test_all_tables_are_maintained_and_told(lake: FileLake, maintain: Any) -> None:
    """First a dry run, which changes nothing; every table is a line of progress and of the end."""
    version = DeltaTable(lake.uri).version()
    shown = maintain("--dry-run", "--json")
    assert (shown.code, DeltaTable(lake.uri).version()) == (ExitCode.OK, version)
    assert {name: each["outcome"] for name, each in shown.tables.items()} == {
        "events": "draft",
        "idle": "no table yet",
        "control table": "draft",
        "quality results": "no table yet",
        "publication decisions": "no table yet",
        "status table": "no table yet",
        "schemas table": "no table yet",
    }
    done = maintain()
    assert done.code == ExitCode.OK, done.err
    for name in shown.tables:
        assert f"{name}: " in done.err
        assert name in done.out
    assert "0 quality page(s) removed" in done.out
    assert len(DeltaTable(lake.uri).file_uris()) == 1
    assert lake.verified() == [(9, 9)]
    again = maintain("events", "--json")
    assert list(again.tables) == ["events", *SHARED]
    assert again.tables["events"]["files_replaced"] == 0
    assert json.loads(again.out)["quality_pages"] == {"pages_removed": 0}


def test_a_table_that_is_refused_stops_no_other(lake: FileLake, maintain: Any) -> None:
    """The exit code and the report tell it, by name."""
    DeltaTable(lake.uri).restore(1)
    unknown = maintain("events", "nope", "--json")
    assert json.loads(unknown.out)["error"] == "UnknownPipeline"
    refused = maintain("events", "idle", "--json")
    assert refused.code == ExitCode.REFUSED
    assert refused.tables["events"]["error"] == "TableRestored"
    assert refused.tables["idle"]["outcome"] == "no table yet"
    assert refused.tables["control table"]["outcome"] == "maintained"
    told = maintain("events")
    assert told.code == ExitCode.REFUSED
    assert "TableRestored" in told.err


def test_too_short_a_retention_is_refused(lake: FileLake, maintain: Any) -> None:
    """Nothing is removed, and nothing is compacted."""
    version = DeltaTable(lake.uri).version()
    refused = maintain("--keep-hours", "24", "--json")
    assert refused.code == ExitCode.REFUSED
    assert refused.tables["events"]["error"] == "RetentionTooShort"
    assert DeltaTable(lake.uri).version() == version


@pytest.mark.parametrize(
    "at",
    [
        "maintenance.compact:after:1",
        "maintenance.remove_unreferenced:before:1",
        "maintenance.remove_unreferenced:after:1",
    ],
)
def test_maintenance_that_is_killed_is_done_again(lake: FileLake, maintain: Any, at: str) -> None:
    """I1: whatever step it dies at, the table is exact, and the same command ends well."""
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
    assert maintain().code == ExitCode.OK
    lake.run(1)
    assert lake.verified() == [(10, 10)]
    assert len(DeltaTable(lake.uri).file_uris()) == 2

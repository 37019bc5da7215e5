"""Refusals that need neither Spark nor Kafka: dry runs of plans, and tables of another kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.file_lake import FileLake, home_lake
from tests.support.typed_lake import home_typed_lake
from tidemark.core.errors import ExitCode


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Plans 1 to 3 have landed, 4 is abandoned, 5 is open."""
    lake = home_lake(tmp_path)
    lake.plan(1)
    lake.abandon.abandon(4, "ops", "a test")
    lake.plan(1)
    return lake


@pytest.mark.parametrize(
    ("plan", "check", "ingest"),
    [
        (1, "draft", "landed already"),
        (4, "PlanCancelled", "PlanCancelled"),
        (5, "PlanStillOpen", "kept"),
        (9, "InvalidSelection", "InvalidSelection"),
    ],
)
@pytest.mark.usefixtures("lake")
def test_a_dry_run_raises_the_error_of_the_command(
    offline: Command, plan: int, check: str, ingest: str
) -> None:
    """The error depends on the state of the plan."""
    checked = offline("check", "events", "--plan", str(plan), "--dry-run", "--json")
    assert checked.json.get("error", checked.json.get("outcome")) == check
    assert checked.code == (ExitCode.OK if check == "draft" else ExitCode.REFUSED)
    landed = offline("ingest", "events", "--plan", str(plan), "--dry-run", "--json")
    (record,) = landed.json
    assert record.get("error", record.get("outcome")) == ingest
    assert landed.code == (ExitCode.REFUSED if record.get("error") else ExitCode.OK)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("plan events@typed", "a derived table of pipeline 'events'"),
        ("plan events@upsert", "no upsert table"),
        ("abandon events@typed --plan 1 --reason x", "without plans"),
        ("undo events@typed --plan 1 --reason x", "without plans"),
        ("rewind events@typed --reason x", "without plans"),
        ("control rebuild events@typed --dry-run", "without plans"),
        ("decode events@typed", "without plans"),
        ("verify events@typed", "without plans"),
        ("backfill events@typed --retained --dry-run", "a derived table of pipeline 'events'"),
        ("backfill events@quarantine --retained", "expected NAME, NAME@typed or NAME@upsert"),
        ("backfill events@july --retained", "after @; got 'july'"),
        ("check events@typed", "a derived table of pipeline 'events'"),
        ("accept-loss events@typed --reason x", "a derived table of pipeline 'events'"),
        ("upsert events", "no upsert table"),
        ("decode plain", "no typed table"),
        ("quarantine list plain", "no typed table"),
    ],
)
def test_a_command_for_another_kind_of_table_is_refused(
    tmp_path: Path, offline: Command, command: str, problem: str
) -> None:
    """The error has a name, and nothing is recorded."""
    home_typed_lake(tmp_path)
    (tmp_path / "pipelines" / "plain.yaml").write_text(
        "name: plain\ntopic: t\nschedule: '@daily'\n"
    )
    refused = offline(*command.split(), "--json")
    assert (refused.code, refused.json["error"]) == (ExitCode.REFUSED, "InvalidReference")
    assert problem in refused.json["problem"]
    assert not (tmp_path / "lakehouse").exists()


def test_an_undo_without_kafka_is_refused_unless_its_loss_is_permitted(
    lake: FileLake, offline: Command
) -> None:
    """I3. The rows may be the only copy of their records; a dry run states this."""
    wanted = ("undo", "events", "--plan", "2", "--reason", "wrong")
    refused = offline(*wanted, "--json")
    assert (refused.code, refused.json["error"]) == (ExitCode.TRANSIENT, "KafkaUnavailable")
    assert len(lake.rows()) == 9
    shown = offline(*wanted, "--dry-run")
    assert shown.code == ExitCode.OK
    assert "plan 2 of events would be undone: 3 rows\nunknown whether a run" in shown.out
    assert "--allow-loss" in shown.out
    done = offline(*wanted, "--allow-loss", "--json")
    undone = done.json["plan"]
    assert (undone["rows"], undone["lost"]) == (3, None)
    assert undone["problem"]["error"] == "KafkaUnavailable"
    assert len(lake.rows()) == 6

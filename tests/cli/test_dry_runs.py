"""`--dry-run` is refused for what the command would be refused for; neither Spark nor Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.file_lake import FileLake, home_lake
from tidemark.core.errors import ExitCode


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Plans 1 to 3 have landed, 4 was given up, 5 is open."""
    lake = home_lake(tmp_path)
    lake.plan(1)
    lake.abandon.abandon(4, "ops", "a test")
    lake.plan(1)
    return lake


@pytest.mark.parametrize(
    ("plan", "quality", "ingest"),
    [
        (1, "draft", "landed already"),
        (4, "PlanAbandoned", "PlanAbandoned"),
        (5, "PlanNotLanded", "kept"),
        (9, "UnknownPlan", "UnknownPlan"),
    ],
)
@pytest.mark.usefixtures("lake")
def test_a_named_plan_is_looked_at(offline: Command, plan: int, quality: str, ingest: str) -> None:
    """Its state decides, and not that somebody named it."""
    checked = offline("quality", "events", "--plan", str(plan), "--dry-run", "--json")
    assert checked.json.get("error", checked.json.get("outcome")) == quality
    assert checked.code == (ExitCode.OK if quality == "draft" else ExitCode.REFUSED)
    landed = offline("ingest", "events", "--plan", str(plan), "--dry-run", "--json")
    (told,) = landed.json
    assert told.get("error", told.get("outcome")) == ingest
    assert landed.code == (ExitCode.REFUSED if told.get("error") else ExitCode.OK)

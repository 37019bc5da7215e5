"""`tidemark publication` over real tables, without Spark and Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.file_lake import FileLake, home_lake
from tests.support.publication import record_decision
from tidemark.core.errors import ExitCode
from tidemark.core.publication import PublicationStatus


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Three plans of three records: 1 is published, 2 blocked, 3 not checked."""
    lake = home_lake(tmp_path)
    for sequence, status in ((1, PublicationStatus.PUBLISHED), (2, PublicationStatus.BLOCKED)):
        record_decision(lake.control, "events", sequence, status, reason="a rule")
    return lake


@pytest.mark.usefixtures("lake")
def test_unpublished_plans_are_listed_released_and_rejected(offline: Command) -> None:
    """The result contains the operator and the reason."""
    shown = offline("publication", "list", "events", "--json")
    assert [(each["plan"], each["status"]) for each in shown.json] == [(2, "blocked"), (3, None)]
    assert (
        "published: 1 of 3 landed plans of events" in offline("publication", "list", "events").out
    )
    assert len(offline("publication", "list", "events", "--all", "--json").json) == 3

    draft = offline("publication", "release", "events", "--plan", "2", "--reason", "x", "--dry-run")
    assert (draft.code, "plan 2 of events would be released" in draft.out) == (ExitCode.OK, True)
    assert len(offline("publication", "list", "events", "--json").json) == 2
    done = offline("publication", "release", "events", "--plan", "2", "--reason", "new", "--json")
    assert (done.json["outcome"], done.json["published"], done.json["reason"]) == (
        "decided",
        True,
        "new",
    )
    assert done.json["decided_by"].startswith("cli:")
    again = offline("publication", "release", "events", "--plan", "2", "--reason", "x", "--json")
    assert (again.code, again.json["error"]) == (ExitCode.REFUSED, "NothingToDo")
    assert (
        offline("publication", "reject", "events", "--plan", "1", "--reason", "x").code
        == ExitCode.OK
    )
    kept = offline("publication", "list", "events", "--json").json
    assert [(each["plan"], each["status"]) for each in kept] == [(1, "rejected"), (3, None)]


def test_the_view_is_printed_for_an_engine(lake: FileLake, offline: Command) -> None:
    """The query contains the locations of the tables."""
    spark = offline("publication", "view", "events").out
    assert f"FROM delta.`{lake.uri}`" in spark
    duck = offline("publication", "view", "events", "--engine", "duckdb", "--json").json
    assert duck["engine"] == "duckdb"
    assert f"delta_scan('{lake.control_uri}')" in duck["sql"]

"""`tidemark verdict` over real tables; neither Spark nor Kafka is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.file_lake import HomeFileLake, home_lake
from tests.support.services import NOW
from tidemark.core.errors import ExitCode
from tidemark.quality.publication import Standing, Word
from tidemark.quality.publication_table import DeltaVerdictTable


@pytest.fixture
def lake(tmp_path: Path) -> HomeFileLake:
    """Three plans of three records; 1 was published, 2 blocked, and nobody has checked 3."""
    lake = home_lake(tmp_path)
    table = DeltaVerdictTable(str(lake.root / "quality" / "verdicts"), str(lake.uri))
    for sequence, standing in ((1, Standing.PUBLISHED), (2, Standing.BLOCKED)):
        record = lake.ledger.plans[sequence]
        assert record.landing is not None
        word = Word(sequence=sequence, standing=standing, said_at=NOW, reason="a rule")
        table.say(record.plan, record.landing, word)
    return lake


@pytest.mark.usefixtures("lake")
def test_what_is_kept_back_is_listed_and_decided(offline: Command) -> None:
    """Who said so, and why, is in the answer and in the table."""
    shown = offline("verdict", "list", "events", "--json")
    assert [(each["plan"], each["standing"]) for each in shown.json] == [(2, "blocked"), (3, None)]
    assert (
        "1 of 3 landed plan(s) of events are published" in offline("verdict", "list", "events").out
    )
    assert len(offline("verdict", "list", "events", "--all", "--json").json) == 3

    draft = offline("verdict", "release", "events", "--plan", "2", "--reason", "x", "--dry-run")
    assert (draft.code, "plan 2 of events would be released" in draft.out) == (ExitCode.OK, True)
    assert len(offline("verdict", "list", "events", "--json").json) == 2
    done = offline("verdict", "release", "events", "--plan", "2", "--reason", "new", "--json")
    assert (done.json["outcome"], done.json["published"], done.json["reason"]) == (
        "decided",
        True,
        "new",
    )
    assert done.json["said_by"].startswith("cli:")
    again = offline("verdict", "release", "events", "--plan", "2", "--reason", "x", "--json")
    assert (again.code, again.json["error"]) == (ExitCode.REFUSED, "NotBlocked")
    assert (
        offline("verdict", "reject", "events", "--plan", "1", "--reason", "x").code == ExitCode.OK
    )
    kept = offline("verdict", "list", "events", "--json").json
    assert [(each["plan"], each["standing"]) for each in kept] == [(1, "rejected"), (3, None)]


def test_the_view_is_printed_for_an_engine(lake: HomeFileLake, offline: Command) -> None:
    """With the places of the tables, and of this table alone."""
    spark = offline("verdict", "view", "events").out
    assert f"FROM delta.`{lake.uri}`" in spark
    duck = offline("verdict", "view", "events", "--engine", "duckdb", "--json").json
    assert duck["engine"] == "duckdb"
    assert f"delta_scan('{lake.root}/quality/verdicts')" in duck["sql"]

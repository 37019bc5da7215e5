"""`tidemark shell`: statements on a real Spark Connect server, over the tables of a home."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.file_lake import FileLake
from tidemark.core.errors import ExitCode


@pytest.mark.broker
@pytest.mark.spark
def test_statements_of_standard_input_read_the_tables_by_their_names(
    tidemark: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view follows its table: a statement reads the rows that landed after the shell began."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.yaml").write_text(
        'name: events\ntopic: events\ntarget: bronze/events\nschedule: "@daily"\nstart: earliest\n'
    )
    lake = FileLake(root=tmp_path / "lakehouse")
    lake.run(3)
    statements = (
        "names = 'events', '`bronze.events`', 'offset_ranges'\n"
        "for name in names:\n"
        "    print(name, spark.sql(f'SELECT count(*) FROM {name}').first()[0])\n"
    )
    counts = []
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", io.StringIO(statements))
        ran = tidemark("shell")
        assert ran.code == ExitCode.OK, ran.err
        printed = dict(line.rsplit(" ", 1) for line in ran.out.splitlines())
        assert int(printed["offset_ranges"]) > 0
        counts.append((printed["events"], printed["`bronze.events`"]))
        lake.run(2)
    assert counts == [("3", "3"), ("5", "5")]

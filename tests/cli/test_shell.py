"""`tidemark shell`: statements on a real Spark, over the tables of a home."""

from __future__ import annotations

import io
import os
import subprocess
import sys
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


@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.faults
def test_a_shell_with_its_own_spark_listens_on_the_loopback_address_only(tmp_path: Path) -> None:
    """Clients of its blocks need a secret."""
    statements = (
        "import os, psutil\n"
        "process = psutil.Process()\n"
        "for each in [process, *process.children(recursive=True)]:\n"
        "    for opened in each.net_connections('tcp'):\n"
        "        if opened.status == psutil.CONN_LISTEN:\n"
        "            print('listens', opened.laddr.ip.removeprefix('::ffff:'))\n"
        "print('secret', spark.conf.get('spark.authenticate'))\n"
    )
    program = Path(sys.executable).parent / "tidemark"
    ran = subprocess.run(
        [str(program), "shell", "--master", "local[1]"],
        input=statements,
        env={**os.environ, "TIDEMARK_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == ExitCode.OK, ran.stderr
    printed = ran.stdout.split("\n")
    assert set(printed) - {""} == {"listens 127.0.0.1", "secret true"}
    assert len(printed) > 4

"""The commands of docs/how-to/own-topic.md run as they are written, with the results it shows.

The reader has no cluster, and uses the topic that the page creates.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.conftest import PROJECT
from tests.support.commands import Command
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus

PAGE = PROJECT / "docs" / "how-to" / "own-topic.md"
_FIRST_HEADING = "\n### Without a cluster\n"
_BLOCK = re.compile(r"^```(sh|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OWN_BROKER = "App.from_environment().connections.embedded_broker_config()"
_RULES = re.compile(r"^  rules:\n    .*\n", re.MULTILINE)


class Reader:
    """Follows the page: runs its commands and its program, and edits the spec."""

    def __init__(self, folder: Path, bootstrap: str, tidemark: Command) -> None:
        self._program = folder / "payments.py"
        self._spec = folder / "pipelines" / "payments.yaml"
        self._bootstrap = bootstrap
        self._tidemark = tidemark
        self.printed: dict[str, str] = {}

    def follow(self, kind: str, text: str) -> None:
        """Do what one block contains."""
        if kind == "python":
            broker = f'{{"bootstrap.servers": "{self._bootstrap}"}}'
            self._program.write_text(text.replace(_OWN_BROKER, broker))
            subprocess.run([sys.executable, self._program], check=True)
        elif text.startswith("# Drafted from"):
            assert self._spec.read_text() == text
        elif kind == "yaml":
            spec = _RULES.sub("", self._spec.read_text())
            self._spec.write_text(spec.replace("decode:\n", f"decode:\n{text}", 1))
        else:
            for line in text.splitlines():
                words = shlex.split(line, comments=True)
                # tests/cli/test_local.py has the command line of Airflow.
                if words[:1] == ["tidemark"] and words[1] != "airflow":
                    ran = self._tidemark(*words[1:])
                    assert ran.code == ExitCode.OK, (line, ran.err)
                    self.printed[shlex.join(words[1:])] = ran.out


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.e2e
def test_an_own_topic_becomes_an_upsert_table_by_the_commands_of_the_page(
    broker: BrokerStatus, tmp_path: Path, tidemark: Command
) -> None:
    reader = Reader(tmp_path, broker.bootstrap, tidemark)
    _, heading, page = PAGE.read_text(encoding="utf-8").partition(_FIRST_HEADING)
    assert heading
    for kind, text in _BLOCK.findall(page):
        reader.follow(kind, text)

    replayed = reader.printed["quarantine replay payments --dry-run"].splitlines()
    assert replayed[0] in page
    for line in (each for each in replayed if "│" in each):
        cells = [each.strip() for each in line.split("│")[1:-1]]
        assert re.search(r" +".join(map(re.escape, cells)), page), cells
    assert "equal: every visible record" in reader.printed["verify payments"]
    latest = DeltaTable(tmp_path / "lakehouse" / "silver" / "payments_latest")
    assert latest.count() == 40
    (listed,) = (out for each, out in reader.printed.items() if "rule_broken" in each)
    assert "32 records of payments in quarantine" in listed
    assert tidemark("quarantine", "list", "payments").out.startswith("3 records of payments")

"""Both engines report the same failure with the same error name, exit code and text."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.conftest import PROJECT, TopicFactory
from tests.core.test_errors import concrete_errors
from tests.support.commands import Command, CommandResult
from tests.support.transactions import Record, produce_records
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.local.broker import BrokerStatus
from tidemark.spark.engine import TOKEN_VARIABLE, Server

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults]

_SPEC = """
name: events
topic: {topic}
schedule: "@daily"
start: earliest
quality: {{suite: {suite}}}
decode:
  publish: always
  value: {{format: json, schema: {{n: long, name: string}}}}
  rules: {rules}
  quarantine: {{records: {quarantine}}}
  upsert: {{}}
"""
_SUITE = {"name": "events", "expectations": [], "meta": {"tidemark": {"columns": {}}}}
_POSITIVE = {
    "type": "expect_column_values_to_be_between",
    "kwargs": {"column": "n", "min_value": 100},
    "severity": "critical",
}


@dataclass
class Site:
    """Pipeline `events` with ten JSON records, two of them broken; nothing is planned.

    Attributes:
        home: Folder of all files of the test.
        topic: The topic.
        admin: A client of the brokers.
        run: Runs a command.
        monkeypatch: Changes the environment of commands.
    """

    home: Path
    topic: str
    admin: AdminClient
    run: Command
    monkeypatch: pytest.MonkeyPatch

    def spec(self, rules: str = "{}", quarantine: int = 5, suite: str = "events") -> None:
        """Write the spec."""
        text = _SPEC.format(topic=self.topic, rules=rules, quarantine=quarantine, suite=suite)
        (self.home / "pipelines" / "events.yaml").write_text(text)

    def suite(self, columns: dict[str, str], *expectations: object) -> None:
        """Write the quality suite."""
        suite = {
            **_SUITE,
            "expectations": list(expectations),
            "meta": {"tidemark": {"columns": columns}},
        }
        (self.home / "project/include/expectations/events.json").write_text(json.dumps(suite))

    def table(self, name: str) -> Path:
        """Return the folder of a table."""
        return self.home / "lakehouse" / name

    def run_all(self, *commands: str) -> None:
        """Run commands that must succeed."""
        for command in commands:
            ran = self.run(*command.split())
            assert ran.code == 0, ran.err


def _planned(site: Site) -> str:
    site.run_all("plan events")
    return "ingest events --plan 1"


def _landed(site: Site) -> None:
    site.run_all("ingest events")


def topic_deleted(site: Site) -> str:
    """The plan's topic has been deleted."""
    command = _planned(site)
    site.admin.delete_topics([site.topic])[site.topic].result(30)
    return command


def unknown_plan(_: Site) -> str:
    """The control table has no plan of this number."""
    return "ingest events --plan 7"


def abandoned_plan(site: Site) -> str:
    """An operator has abandoned the plan."""
    _planned(site)
    site.run_all("abandon events --plan 1 --reason test")
    return "ingest events --plan 1"


def kafka_unreachable(site: Site) -> str:
    """No broker answers."""
    command = _planned(site)
    site.monkeypatch.setenv(connection_variable("kafka_default"), kafka_connection("127.0.0.1:1"))
    return command


def file_for_a_table(site: Site) -> str:
    """A file is in place of the bronze table."""
    command = _planned(site)
    shutil.rmtree(site.table("bronze"), ignore_errors=True)
    site.table("bronze").write_text("")
    return command


def rule_is_no_condition(site: Site) -> str:
    """A row rule names no column."""
    _landed(site)
    site.spec(rules="{wrong: nowhere > 1}")
    return "decode events"


def rule_does_not_parse(site: Site) -> str:
    """A row rule is invalid SQL."""
    _landed(site)
    site.spec(rules="{wrong: n >}")
    return "decode events"


def rule_fails_at_a_value(site: Site) -> str:
    """A row rule casts a text that is not a number; the error contains no value."""
    _landed(site)
    site.spec(rules="{wrong: CAST(value.name AS INT) > 0}")
    return "decode events"


def too_many_quarantined(site: Site) -> str:
    """The topic has more broken records than the spec allows."""
    _landed(site)
    site.spec(quarantine=0)
    return "decode events"


def bronze_file_missing(site: Site) -> str:
    """A file of the bronze table is missing."""
    _landed(site)
    for file in DeltaTable(site.table("bronze/events")).file_uris():
        Path(file).unlink()
    return "decode events"


def bronze_file_damaged(site: Site) -> str:
    """A file of the bronze table is not a Parquet file."""
    _landed(site)
    for file in DeltaTable(site.table("bronze/events")).file_uris():
        Path(file).write_bytes(b"nothing" * (Path(file).stat().st_size // 7 + 1))
    return "decode events"


def typed_file_missing(site: Site) -> str:
    """A file of the typed table is missing."""
    site.run_all("ingest events", "decode events")
    for file in DeltaTable(site.table("silver/events")).file_uris():
        Path(file).unlink()
    return "upsert events"


def suite_missing(site: Site) -> str:
    """The spec names a missing suite."""
    _landed(site)
    site.spec(suite="nothing")
    return "check events"


def suite_column_unknown(site: Site) -> str:
    """A column of the suite refers to an unknown column of the table."""
    _landed(site)
    site.suite({"n": "nowhere + 1"}, _POSITIVE)
    return "check events"


def suite_column_does_not_parse(site: Site) -> str:
    """A column of the suite is invalid SQL."""
    _landed(site)
    site.suite({"n": "1 +"}, _POSITIVE)
    return "check events"


def suite_column_fails_at_a_value(site: Site) -> str:
    """A column of the suite casts a text that is not a number; the error contains no value."""
    _landed(site)
    site.suite({"n": "CAST(value_text AS INT)"}, _POSITIVE)
    return "check events"


def critical_rule_fails(site: Site) -> str:
    """The rows break a critical rule."""
    _landed(site)
    site.suite({"n": "CAST(1 AS INT)"}, _POSITIVE)
    return "check events"


def plan_not_landed(site: Site) -> str:
    """The plan to check has not landed."""
    _planned(site)
    return "check events --plan 1"


def unknown_pipeline(_: Site) -> str:
    """No spec has the name."""
    return "ingest unknown"


def no_typed_table(site: Site) -> str:
    """The spec of the pipeline has no section `decode`."""
    spec = site.home / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text().partition("decode:")[0])
    return "decode events"


FAILURES: list[Callable[[Site], str]] = [
    *(topic_deleted, unknown_plan, abandoned_plan, kafka_unreachable, file_for_a_table),
    *(rule_is_no_condition, rule_does_not_parse, rule_fails_at_a_value, too_many_quarantined),
    *(bronze_file_missing, bronze_file_damaged, typed_file_missing),
    *(suite_missing, suite_column_unknown, suite_column_does_not_parse),
    *(suite_column_fails_at_a_value, critical_rule_fails, plan_not_landed),
    *(unknown_pipeline, no_typed_table),
]


@pytest.fixture
def site(
    by_submit: Command,
    broker: BrokerStatus,
    admin: AdminClient,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    """Return the pipeline, with a suite without rules."""
    name = topic()
    values = [b'{"n": 1, "name": "a"}'] * 8 + [b"broken", b'{"n": "canary"}']
    produce_records(broker.bootstrap, name, [Record(key=b"k", value=v) for v in values])
    (tmp_path / "pipelines").mkdir()
    project = tmp_path / "project"
    (project / "include" / "expectations").mkdir(parents=True)
    for part in ("jobs", ".tidemark", "include/jvm"):
        (project / part).symlink_to(PROJECT / part)
    monkeypatch.setenv("TIDEMARK_PROJECT", str(project))
    site = Site(tmp_path, name, admin, by_submit, monkeypatch)
    site.spec()
    site.suite({})
    return site


@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: each.__name__)
def test_both_engines_report_the_same_error(
    site: Site,
    connect_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    failure: Callable[[Site], str],
) -> None:
    """The second engine repeats the failed command; a failed command changes nothing."""
    monkeypatch.setenv(TOKEN_VARIABLE, connect_server.token)
    monkeypatch.setenv("TIDEMARK_MASTER", f"sc://{connect_server.host}:{connect_server.port}")
    command = failure(site).split()
    on_server = site.run(*command)
    by_submit = site.run(*command, "--master", "local[2]")
    name, line = _first_line(by_submit)
    print(f"| {failure.__name__} | {name} | {by_submit.code} | {line} |")
    assert by_submit.code != 0
    assert name, by_submit.err
    assert (on_server.code, *_first_line(on_server)) == (by_submit.code, name, line)
    for ran in (on_server, by_submit):
        assert "canary" not in ran.out + ran.err
        assert "Traceback" not in ran.err


def _first_line(ran: CommandResult) -> tuple[str, str]:
    """Return name and first line of the first error of a command; empty texts without an error."""
    for line in ran.err.splitlines():
        found = re.match(r"(?:[\w@-]+: )?(\w+): ", line)
        if found and found[1] in {kind.__name__ for kind in concrete_errors()}:
            return found[1], line
    return "", ""

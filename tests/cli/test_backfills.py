"""`tidemark backfill` on a real broker: selections of offsets, approval, a second table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.cli.test_repairs import lake_over
from tests.conftest import TopicFactory
from tests.support.commands import Command, CommandResult
from tests.support.kafka_judge import group_names, log_ranges
from tests.support.topics import delete_records
from tests.support.transactions import Record, produce_aborted, produce_records, produce_values
from tests.support.verdict import judge
from tidemark.app.app import App
from tidemark.bronze.backfill.errors import BackfillUnfinished
from tidemark.bronze.backfill.selection import select
from tidemark.cli import progress
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.spec.ref import PipelineRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker


NO_RETENTION: Mapping[str, str] = {"retention.ms": "-1"}
"""Settings of a topic that keeps records of any age."""
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
HOUR_MS = 3_600_000


def define(home: Path, topic: str, *lines: str) -> None:
    """Define pipeline `events`, which starts at the end of its topic."""
    (home / "pipelines").mkdir()
    (home / "pipelines" / "events.yaml").write_text(
        "\n".join(
            ["name: events", f"topic: {topic}", 'schedule: "@daily"', "start: latest", *lines]
        ),
        encoding="utf-8",
    )


def produce_at(bootstrap: str, topic: str, partition: int, *hours: int) -> None:
    """Append a record for each of these hours after midnight."""
    first = int(MIDNIGHT.timestamp() * 1000)
    stamps = [first + hour * HOUR_MS for hour in hours]
    records = [Record(timestamp_ms=stamp, partition=partition) for stamp in stamps]
    produce_records(bootstrap, topic, records)


def error_name(ran: CommandResult) -> str:
    """Return the error of a refused command."""
    assert ran.code == ExitCode.REFUSED
    return str(ran.json["error"])


def test_each_kind_of_selection_is_shown_by_a_dry_run(
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    tmp_path: Path,
    tidemark: Command,
) -> None:
    """Covers offsets, a time window, the retained log and the ranges of a plan."""
    name = topic(partitions=2, config=NO_RETENTION)
    produce_at(broker.bootstrap, name, 0, *range(8))
    produce_at(broker.bootstrap, name, 1, *range(4))
    delete_records(admin, name, 3)
    define(tmp_path, name)

    def ask(*options: str) -> CommandResult:
        return tidemark("backfill", "events", *options, "--dry-run", "--json")

    gone = ask("--offsets", "0:1-5", "--offsets", "1:2-4")
    assert error_name(gone) == "InvalidSelection"
    assert "low watermark is 3" in gone.json["problem"]
    answer = ask("--offsets", "0:1-5", "--offsets", "1:2-4", "--readable-only").json
    assert (answer["ranges"], answer["deleted"]) == ([[0, 3, 5], [1, 2, 4]], [[0, 1, 3]])
    assert ask("--retained", "--partition", "0").json["ranges"] == [[0, 3, 8]]
    window = ("--from", "2026-03-01T01:00:00Z", "--until", "2026-03-01T10:30:00+05:30")
    answer = ask(*window).json
    assert (answer["ranges"], answer["deleted"]) == ([[0, 3, 5], [1, 1, 4]], [])
    (note,) = answer["notes"]
    assert note.endswith("in partition 0")
    assert "no partition 4" in ask(*window, "--partition", "4").json["problem"]
    assert error_name(ask("--from", "2026-03-01T01:00:00Z")) == "InvalidSelection"
    assert not (tmp_path / "lakehouse").exists()

    assert tidemark("plan", "events").code == ExitCode.OK
    produce_values(broker.bootstrap, name, 2)
    assert tidemark("plan", "events").code == ExitCode.OK
    answer = ask("--plan", "1").json
    assert (answer["ranges"], answer["planned"]) == ([], [[0, 8, 10]])
    assert "no plan 2" in ask("--plan", "2").json["problem"]


def test_a_large_backfill_needs_approval(
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without --yes, exit code 65 and no event; with --yes, the request and a plan are recorded."""
    name = topic()
    produce_values(broker.bootstrap, name, 10)
    define(tmp_path, name, "limits:", "  records_per_backfill: 9")
    ask = ("backfill", "events", "--retained", "--chunk", "6")
    shown = tidemark(*ask, "--dry-run", "--json")
    assert (shown.code, shown.json["offsets"], shown.json["chunks"]) == (ExitCode.OK, 10, 2)
    large = tidemark(*ask)
    assert large.code == ExitCode.REFUSED
    assert large.err.splitlines()[1].startswith("BackfillTooLarge")
    assert "--yes" in large.err
    assert not (tmp_path / "lakehouse").exists()

    # Without a shell, spark-submit cannot start: the command ends at its first chunk.
    monkeypatch.setenv("PATH", str(tmp_path))
    approved = tidemark(*ask, "--yes", "--json")
    answer = approved.json
    assert (approved.code, answer["failed"]["error"]) == (ExitCode.REFUSED, "SetupError")
    assert answer["failed"]["plan"] == 1
    first = {"number": 1, "offsets": 6, "plan": 1, "done": False}
    assert answer["chunks"] == [first, {"number": 2, "offsets": 4, "plan": None, "done": False}]
    again = tidemark(
        "backfill", "events", "--resume", answer["requested_by"], "--dry-run", "--json"
    )
    assert again.json["chunks"] == answer["chunks"]
    recorded = App.from_environment().control.plan_record("events", 1)
    assert recorded is not None
    assert [(r.partition, r.start, r.end) for r in recorded.plan.ranges] == [(0, 0, 6)]
    assert tidemark("abandon", "events", "--plan", "1", "--reason", "x").code == ExitCode.OK
    at_the_limit = tidemark("backfill", "events", "--offsets", "0:0-9", "--json")
    assert at_the_limit.json["chunks"] == [{"number": 1, "offsets": 9, "plan": 2, "done": False}]


def test_the_finished_chunks_are_in_the_progress(
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    tmp_path: Path,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka has deleted the first chunk, so nothing of it is left to land."""
    name = topic(config=NO_RETENTION)
    produce_values(broker.bootstrap, name, 10)
    define(tmp_path, name)
    backfills = App.from_environment().pipeline("events").backfills
    seen = backfills.preview(select(offsets=["0:0-10"]), 6, readable_only=True)
    backfills.request(seen, "cli:ann", approved=False)
    delete_records(admin, name, 6)
    # Without a shell, spark-submit cannot start: the command ends at its second chunk.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(progress, "REPEAT_S", 0.01)
    ran = tidemark("backfill", "events", "--resume", "cli:ann", "--json")
    assert ran.json["failed"]["plan"] == 1
    counts = re.findall(r"backfill of events: (\d of \d chunks), ", ran.err)
    assert set(counts) == {"1 of 2 chunks"}


@pytest.mark.spark
def test_a_second_spec_lands_the_topic_in_a_table_of_its_own(
    spark: SparkSession,
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    tidemark: Command,
) -> None:
    """I1: the second table contains all records; the first one does not change."""
    name = topic(partitions=2)
    lake = lake_over(name, spark, broker, tmp_path)
    produce_values(broker.bootstrap, name, 5)
    produce_aborted(broker.bootstrap, name, [Record(partition=1)] * 2)
    landed = lake.run("live")
    watermarks = log_ranges(broker.bootstrap, name)
    header = Record(key=b"", value=None, headers=(("a", None), ("a", b"")), partition=1)
    produce_records(broker.bootstrap, name, [header, Record(partition=0)])
    before = lake.ledger, lake.version(), DeltaTable(lake.uri).file_uris()
    groups = group_names(broker.bootstrap)

    (tmp_path / "pipelines" / "checked.yaml").write_text(
        f'name: checked\ntopic: {name}\nschedule: "@once"\nstart: latest\n', encoding="utf-8"
    )
    fill = ("backfill", "checked", "--retained", "--master", "local[2]", "--json")
    ran = tidemark(*fill)
    assert ran.code == ExitCode.OK, ran.err
    (chunk,) = ran.json["chunks"]
    assert (ran.json["pipeline"], chunk["plan"], chunk["done"]) == ("checked", 1, True)

    second = replace(
        lake, spec=replace(lake.spec, ref=PipelineRef("checked"), target="bronze/checked")
    )
    topic_id = landed.plan.topic_id
    found = judge(second.rows(), broker.bootstrap, name, topic_id)
    assert (found.exact, found.records) == (True, 7), found
    found = judge(lake.rows(), broker.bootstrap, name, topic_id, ranges=watermarks)
    assert (found.exact, found.records) == (True, 5), found
    assert (lake.ledger, lake.version(), DeltaTable(lake.uri).file_uris()) == before
    assert lake.committed() == {0: 5, 1: 3}
    assert group_names(broker.bootstrap) == groups
    assert tidemark("verify", "checked").code == ExitCode.OK

    lake.run("next")
    assert judge(lake.rows(), broker.bootstrap, name, topic_id).exact
    again = tidemark(*fill)
    assert (again.code, again.json["offsets"]) == (ExitCode.OK, 0)


def test_an_unfinished_backfill_prints_one_document(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, tidemark: Command
) -> None:
    """An open plan of a run contains the requested offsets."""
    name = topic(partitions=1)
    produce_values(broker.bootstrap, name, 10)
    define(tmp_path, name)
    (tmp_path / "pipelines" / "events.yaml").write_text(
        f'name: events\ntopic: {name}\nschedule: "@daily"\nstart: earliest\n', encoding="utf-8"
    )
    backfills = App.from_environment().pipeline("events").backfills
    seen = backfills.preview(select(offsets=["0:0-10"]), None, readable_only=False)
    backfills.request(seen, "cli:ann", approved=False)
    assert tidemark("plan", "events").code == ExitCode.OK
    ran = tidemark("backfill", "events", "--resume", "cli:ann", "--json")
    assert ran.json["failed"]["error"] == "BackfillUnfinished"
    assert [chunk["done"] for chunk in ran.json["chunks"]] == [False]
    assert ran.code == BackfillUnfinished.exit_code


def test_a_resumed_backfill_lands_its_open_chunk_first(
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier chunk cannot be planned while the plan of another chunk is open."""
    name = topic(partitions=1)
    produce_values(broker.bootstrap, name, 10)
    define(tmp_path, name)
    backfills = App.from_environment().pipeline("events").backfills
    seen = backfills.preview(select(offsets=["0:0-10"]), 5, readable_only=False)
    backfills.request(seen, "cli:ann", approved=False)
    assert backfills.plan_chunk("cli:ann", 2).plan is not None
    # Without a shell, spark-submit cannot start: the command ends at its first job.
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = tidemark("backfill", "events", "--resume", "cli:ann", "--json")
    assert (ran.json["failed"]["error"], ran.json["failed"]["plan"]) == ("SetupError", 1)
    assert ran.code == ExitCode.REFUSED
    assert ran.err.count("lands first") == 1
    assert [chunk["plan"] for chunk in ran.json["chunks"]] == [None, 1]

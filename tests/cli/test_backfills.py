"""`tidemark backfill` on a real broker: each way to say which offsets, approval, a copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from tidemark.app import App
from tidemark.backfill.errors import BackfillUnfinished
from tidemark.backfill.selection import select
from tidemark.core.errors import ExitCode
from tidemark.dev.broker import BrokerStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker


KEPT: Mapping[str, str] = {"retention.ms": "-1"}
"""Of a topic whose records may be of any time."""
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
HOUR_MS = 3_600_000


def define(home: Path, topic: str, *lines: str) -> None:
    """Pipeline `events`, which begins at the end of its topic."""
    (home / "pipelines").mkdir()
    (home / "pipelines" / "events.yaml").write_text(
        "\n".join(
            ["name: events", f"topic: {topic}", 'schedule: "@daily"', "start: latest", *lines]
        ),
        encoding="utf-8",
    )


def produce_at(bootstrap: str, topic: str, partition: int, *hours: int) -> None:
    """Append a record of each of these hours after midnight."""
    first = int(MIDNIGHT.timestamp() * 1000)
    stamps = [first + hour * HOUR_MS for hour in hours]
    records = [Record(timestamp_ms=stamp, partition=partition) for stamp in stamps]
    produce_records(bootstrap, topic, records)


def refused(ran: CommandResult) -> str:
    """The error of a command that a retry will not cure."""
    assert ran.code == ExitCode.REFUSED
    return str(ran.json["error"])


def test_a_time_window_is_looked_up_in_kafka(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, tidemark: Command
) -> None:
    """First moment in, last moment out; partitions that are idle, or were then, give nothing."""
    name = topic(partitions=4, config=KEPT)
    produce_at(broker.bootstrap, name, 0, 0, 1, 1, 2, 3, 4)
    produce_at(broker.bootstrap, name, 1, 2, 5)
    produce_at(broker.bootstrap, name, 2, 0, 0)
    define(tmp_path, name)

    def window(start: str, end: str, *options: str) -> Any:
        asked = ("backfill", "events", "--from", start, "--until", end, *options)
        ran = tidemark(*asked, "--dry-run", "--json")
        assert ran.code == ExitCode.OK, ran.out
        return ran.json

    def at(hour: int, millisecond: int = 0) -> str:
        return f"2026-03-01T{hour:02}:00:00.{millisecond:03}Z"

    answer = window(at(1), at(3))
    assert (answer["ranges"], answer["offsets"], answer["notes"]) == ([[0, 1, 4], [1, 0, 1]], 4, [])
    # The same moments, said elsewhere in the world.
    answer = window("2026-03-01T00:00:00-01:00", "2026-03-01T08:30:00+05:30")
    assert answer["ranges"] == [[0, 1, 4], [1, 0, 1]]
    assert window(at(1, 1), at(3, 1))["ranges"] == [[0, 3, 5], [1, 0, 1]]
    assert window(at(4), "2200-01-01T00:00:00Z")["ranges"] == [[0, 5, 6], [1, 1, 2]]
    assert window("2000-01-01T00:00:00Z", at(1))["ranges"] == [[0, 0, 1], [2, 0, 2]]
    assert (window(at(6), at(7))["ranges"], window(at(6), at(7))["chunks"]) == ([], 0)
    some = window(at(0), at(5), "--partition", "1", "--partition", "2", "--partition", "3")
    assert some["ranges"] == [[1, 0, 1], [2, 0, 2]]
    for wrong, error in (
        (("--from", at(0), "--until", at(1), "--partition", "4"), "UnknownPartition"),
        (("--from", at(1), "--until", at(1)), "InvalidSelection"),
        (("--from", at(1)), "InvalidSelection"),
        (("--from", "2026-03-01T00:00:00", "--until", at(1)), "InvalidSelection"),
    ):
        assert refused(tidemark("backfill", "events", *wrong, "--dry-run", "--json")) == error
    assert not (tmp_path / "lakehouse").exists()


def test_offsets_that_kafka_has_deleted_are_refused_or_left_out(
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    tmp_path: Path,
    tidemark: Command,
) -> None:
    """Of offsets, of a window, of all there is; nothing is written by asking."""
    name = topic(partitions=2, config=KEPT)
    produce_at(broker.bootstrap, name, 0, *range(8))
    produce_at(broker.bootstrap, name, 1, *range(4))
    delete_records(admin, name, 3)
    define(tmp_path, name)

    def ask(*options: str) -> CommandResult:
        return tidemark("backfill", "events", *options, "--dry-run", "--json")

    offsets = ("--offsets", "0:1-5", "--offsets", "1:2-4")
    gone = ask(*offsets)
    assert refused(gone) == "InvalidRange"
    assert "low watermark is 3" in gone.json["problem"]
    answer = ask(*offsets, "--readable-only").json
    assert (answer["ranges"], answer["deleted"]) == ([[0, 3, 5], [1, 2, 4]], [[0, 1, 3]])
    assert ask("--offsets", "0:3-5").json["ranges"] == [[0, 3, 5]]
    assert refused(ask("--offsets", "0:5-9", "--readable-only")) == "InvalidRange"
    assert ask("--retained").json["ranges"] == [[0, 3, 8], [1, 0, 4]]
    assert ask("--retained", "--partition", "0").json["ranges"] == [[0, 3, 8]]
    answer = ask("--from", "2026-03-01T01:00:00Z", "--until", "2026-03-01T05:00:00Z").json
    assert (answer["ranges"], answer["deleted"]) == ([[0, 3, 5], [1, 1, 4]], [])
    (note,) = answer["notes"]
    assert note.endswith("in partition(s) 0")
    assert not (tmp_path / "lakehouse").exists()


def test_what_a_plan_was_about_is_asked_for_by_its_number(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, tidemark: Command
) -> None:
    """Shown as planned while it is open, to be landed when it was given up; also into a copy."""
    name = topic(partitions=2)
    define(tmp_path, name)
    assert tidemark("plan", "events", "--json").json["plan"] is None
    for partition, count in ((0, 4), (1, 2)):
        produce_values(broker.bootstrap, name, count, partition=partition)
    assert tidemark("plan", "events").code == ExitCode.OK
    produce_values(broker.bootstrap, name, 3)
    ranges = [[0, 0, 4], [1, 0, 2]]

    def ask(*options: str) -> CommandResult:
        return tidemark("backfill", "events", *options, "--dry-run", "--json")

    answer = ask("--plan", "1").json
    assert (answer["ranges"], answer["planned"]) == ([], ranges)
    answer = ask("--plan", "1", "--into", "checked").json
    assert (answer["pipeline"], answer["ranges"]) == ("events@checked", ranges)
    assert tidemark("abandon", "events", "--plan", "1", "--reason", "x").code == ExitCode.OK
    answer = ask("--plan", "1").json
    assert (answer["ranges"], answer["planned"], answer["chunks"]) == (ranges, [], 1)
    assert ask("--plan", "1", "--chunk", "4").json["chunks"] == 2
    assert refused(ask("--plan", "2")) == "UnknownPlan"
    assert refused(ask("--plan", "1", "--partition", "0")) == "InvalidSelection"


def test_a_large_backfill_is_refused_until_somebody_approves_it(
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 65 and no trace; with --yes it is recorded, and planned as far as it can land."""
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

    # Without a shell there is no spark-submit: it ends where its first chunk would land.
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


@pytest.mark.spark
def test_into_lands_a_copy_and_leaves_the_table(
    spark: SparkSession,
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    tidemark: Command,
) -> None:
    """I1: the copy has what landed and what has not; no byte of the first table changes."""
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

    ran = tidemark(
        *("backfill", "events", "--into", "checked", "--retained", "--master", "local[2]"),
        "--json",
    )
    assert ran.code == ExitCode.OK, ran.err
    (chunk,) = ran.json["chunks"]
    assert (ran.json["pipeline"], chunk["plan"], chunk["done"]) == ("events@checked", 1, True)

    copy = replace(lake, spec=lake.spec.copied("checked"))
    topic_id = landed.plan.topic_id
    found = judge(copy.rows(), broker.bootstrap, name, topic_id)
    assert (found.exact, found.records) == (True, 7), found
    found = judge(lake.rows(), broker.bootstrap, name, topic_id, ranges=watermarks)
    assert (found.exact, found.records) == (True, 5), found
    assert (lake.ledger, lake.version(), DeltaTable(lake.uri).file_uris()) == before
    assert lake.committed() == {0: 5, 1: 3}
    assert group_names(broker.bootstrap) == groups
    assert tidemark("verify", "events@checked").code == ExitCode.OK

    lake.run("next")
    assert judge(lake.rows(), broker.bootstrap, name, topic_id).exact
    again = tidemark("backfill", "events", "--into", "checked", "--retained", "--json")
    assert (again.code, again.json["offsets"]) == (ExitCode.OK, 0)


def test_a_backfill_that_others_hold_up_is_one_document(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, tidemark: Command
) -> None:
    """A run has planned its offsets meanwhile, and has not landed them."""
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

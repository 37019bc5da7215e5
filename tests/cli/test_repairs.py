"""Decisions of operators, repairs and verification by the command line, on real parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from tests.conftest import TopicFactory
from tests.support.commands import Command
from tests.support.kafka_judge import group_names, read_all, read_ranges
from tests.support.lake import Lake
from tests.support.topics import (
    delete_records,
    recreate_topic,
)
from tests.support.transactions import Record, produce_aborted, produce_values
from tidemark.core.errors import ExitCode, LostRange, TopicRecreated
from tidemark.local.broker import BrokerStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def lake(
    spark: SparkSession,
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
) -> Lake:
    """Pipeline `events` over a topic of two partitions, defined for the command line as well."""
    return lake_over(topic(partitions=2), spark, broker, tmp_path)


def lake_over(
    topic: str, spark: SparkSession, broker: BrokerStatus, home: Path, **spec: Any
) -> Lake:
    """Pipeline `events` over a topic."""
    connection = {"bootstrap.servers": broker.bootstrap}
    made = Lake(session=spark, root=home / "lakehouse", connection=connection)
    of = made.of(topic, **spec)
    (home / "pipelines").mkdir()
    (home / "pipelines" / "events.yaml").write_text(
        f'name: events\ntopic: {topic}\ntarget: bronze/events\nschedule: "@daily"\n'
        f"start: {of.spec.start}\n",
        encoding="utf-8",
    )
    return of


def events(lake: Lake, where: str) -> list[Mapping[str, Any]]:
    """Return rows of the control table."""
    query = f"SELECT * FROM control WHERE {where} ORDER BY event_number, partition"
    found = QueryBuilder().register("control", DeltaTable(lake.control_uri)).execute(query)
    rows: list[Mapping[str, Any]] = found.read_all().to_struct_array().to_pylist()
    return rows


# -- decisions -----------------------------------------------------------------------------------


def test_a_loss_is_accepted_with_user_time_and_reason(
    lake: Lake, broker: BrokerStatus, admin: AdminClient, tidemark: Command
) -> None:
    """LostRange names the command. A dry run writes nothing, and the next run continues."""
    name = lake.spec.topic
    produce_values(broker.bootstrap, name, 4)
    lake.run("first")
    produce_values(broker.bootstrap, name, 6)
    delete_records(admin, name, 7)
    with pytest.raises(LostRange) as caught:
        lake.planner.plan("second")
    assert "tidemark accept-loss" in caught.value.rendered("fix")

    before = lake.ledger
    shown = tidemark("accept-loss", "events", "--reason", "known", "--dry-run", "--json")
    lost = {"partition": 0, "start": 4, "end": 7, "offsets": 3, "committed_offset": 7}
    assert (shown.code, shown.json) == (ExitCode.OK, {"outcome": "draft", "rows": [lost]})
    wrong = tidemark("accept-loss", "events", "--partition", "1", "--reason", "x", "--json")
    assert (wrong.code, wrong.json["error"]) == (ExitCode.REFUSED, "NothingToDo")
    assert tidemark("accept-loss", "events").code == ExitCode.USAGE
    assert lake.ledger == before

    done = tidemark("accept-loss", "events", "--partition", "0", "--reason", "known", "--json")
    assert (done.code, done.json) == (ExitCode.OK, {"outcome": "accepted", "rows": [lost]})
    (event,) = events(lake, "event = 'loss_accepted'")
    assert event["requested_by"].startswith("cli:")
    assert event["reason"] == "known"
    assert event["recorded_at"] is not None
    assert lake.run("second").landing.records == 3
    verified = tidemark("verify", "events")
    assert verified.code == ExitCode.OK
    assert "partition 0: 3 offsets accepted as lost, not compared" in verified.out


def test_a_plan_is_abandoned_with_user_time_and_reason(
    lake: Lake, broker: BrokerStatus, tidemark: Command
) -> None:
    """A dry run writes nothing; the next plan has the offsets."""
    name = lake.spec.topic
    produce_values(broker.bootstrap, name, 4)
    assert tidemark("plan", "events").code == ExitCode.OK
    before = lake.ledger
    wanted = ("abandon", "events", "--plan", "1", "--reason", "too large")
    shown = tidemark(*wanted, "--dry-run", "--json")
    assert (shown.code, shown.json["outcome"]) == (ExitCode.OK, "draft")
    assert (shown.json["plan"]["sequence"], shown.json["plan"]["offsets"]) == (1, 4)
    text = tidemark(*wanted, "--dry-run").out
    assert text == "plan 1 of events would be abandoned: 4 offsets\n"
    assert lake.ledger == before
    done = tidemark(*wanted)
    assert (done.code, done.out) == (ExitCode.OK, "plan 1 of events is abandoned: 4 offsets\n")
    (event,) = events(lake, "event = 'abandoned'")
    assert event["requested_by"].startswith("cli:")
    assert (event["reason"], event["recorded_at"] is not None) == ("too large", True)
    lake.run("next")
    assert lake.delivered_rows() == read_all(broker.bootstrap, name)
    landed = tidemark("abandon", "events", "--plan", "2", "--reason", "wrong", "--json")
    assert (landed.code, landed.json["error"]) == (ExitCode.REFUSED, "NothingToDo")


def test_a_plan_is_undone_with_user_time_and_reason(
    lake: Lake, broker: BrokerStatus, tidemark: Command
) -> None:
    """I1: exactly its rows leave the table; the next run reads its offsets again."""
    name = lake.spec.topic
    for number, records in enumerate((4, 3, 2)):
        produce_values(broker.bootstrap, name, records)
        lake.run(f"run {number}")
    shown = tidemark("undo", "events", "--plan", "2", "--reason", "wrong", "--dry-run", "--json")
    assert (shown.json["outcome"], shown.json["plan"]["rows"]) == ("draft", 3)
    assert lake.delivered_rows() == read_all(broker.bootstrap, name)
    done = tidemark("undo", "events", "--plan", "2", "--reason", "wrong")
    assert (done.code, done.out) == (ExitCode.OK, "plan 2 of events is undone: 3 rows\n")
    kept = ({0: (0, 4)}, {0: (7, 9)})
    assert lake.delivered_rows() == [
        r for each in kept for r in read_ranges(broker.bootstrap, name, each)
    ]
    recorded = [(row["event"], row["reason"]) for row in events(lake, "event_number > 6")]
    assert recorded == [("undo_started", "wrong"), ("undone", "wrong")]
    lake.run("next")
    assert lake.delivered_rows() == read_all(broker.bootstrap, name)


def test_a_recreation_is_accepted_with_user_time_and_reason(
    lake: Lake, broker: BrokerStatus, admin: AdminClient, tidemark: Command
) -> None:
    """TopicRecreated names the command; a dry run writes nothing."""
    name = lake.spec.topic
    produce_values(broker.bootstrap, name, 4)
    same = tidemark("accept-recreation", "events", "--reason", "x", "--json")
    assert (same.code, same.json["error"]) == (ExitCode.REFUSED, "NothingToDo")
    lake.run("first")
    recreate_topic(admin, broker.bootstrap, name)
    produce_values(broker.bootstrap, name, 6)
    with pytest.raises(TopicRecreated) as caught:
        lake.planner.plan("second")
    assert "tidemark accept-recreation" in caught.value.rendered("fix")

    before = lake.ledger
    shown = tidemark("accept-recreation", "events", "--reason", "moved", "--dry-run", "--json")
    rows = [{"partition": 0, "offset": 0}]
    assert (shown.code, shown.json) == (ExitCode.OK, {"outcome": "draft", "rows": rows})
    assert lake.ledger == before
    done = tidemark("accept-recreation", "events", "--reason", "moved")
    assert (done.code, "accepted" in done.out) == (ExitCode.OK, True), done.err
    (event,) = events(lake, "event = 'recreation_accepted'")
    new = caught.value.seen.removeprefix("topic id ")
    assert (event["topic_id"], event["committed_offset"]) == (new, 0)
    assert event["requested_by"].startswith("cli:")
    assert event["reason"] == "moved"
    assert lake.run("second").landing.records == 6
    verified = tidemark("verify", "events", "--json")
    assert (verified.code, verified.json["topic_id"]) == (ExitCode.OK, new)


# -- repair --------------------------------------------------------------------------------------


def test_rewind_and_rebuild_repair_the_tables_as_their_dry_runs_show(
    lake: Lake, broker: BrokerStatus, tidemark: Command
) -> None:
    """Runs are refused after a RESTORE, and after the loss of the control table."""
    name = lake.spec.topic
    for run in ("first", "second"):
        produce_values(broker.bootstrap, name, 3)
        lake.run(run)
    nothing = tidemark("rewind", "events", "--reason", "x", "--json")
    assert (nothing.code, nothing.json["error"]) == (ExitCode.REFUSED, "NothingToDo")
    landing = lake.ledger.plans[1].held_now
    assert landing is not None
    DeltaTable(lake.uri).restore(landing.table_version)
    refused = tidemark("plan", "events", "--json")
    assert (refused.code, refused.json["error"]) == (ExitCode.REFUSED, "TableBehindLedger")
    before = lake.ledger
    shown = tidemark("rewind", "events", "--reason", "bad deploy", "--dry-run", "--json")
    assert [(row["plan"], row["becomes"]) for row in shown.json["rows"]] == [(2, "unread again")]
    assert lake.ledger == before
    assert tidemark("rewind", "events", "--reason", "bad deploy").code == ExitCode.OK
    assert {row["reason"] for row in events(lake, "event = 'undone'")} == {"bad deploy"}
    lake.run("third")

    shutil.rmtree(lake.control_uri)
    refused = tidemark("plan", "events", "--json")
    assert refused.code != ExitCode.OK
    assert "tidemark control rebuild events" in refused.json["fix"]
    unsaid = tidemark("control", "rebuild", "events")
    assert unsaid.code == ExitCode.USAGE
    shown = tidemark("control", "rebuild", "events", "--dry-run", "--json")
    assert shown.json["outcome"] == "draft"
    assert {row["becomes"] for row in shown.json["rows"]} == {"recorded again"}
    assert not lake.control_uri.exists()
    done = tidemark("control", "rebuild", "events", "--apply", "--reason", "disk", "--json")
    assert (done.code, done.json["rows"]) == (ExitCode.OK, shown.json["rows"])
    produce_values(broker.bootstrap, name, 2)
    lake.run("fourth")
    assert lake.delivered_rows() == read_all(broker.bootstrap, name)
    assert tidemark("verify", "events").code == ExitCode.OK
    assert lake.committed() == {0: 8, 1: 0}


# -- verification --------------------------------------------------------------------------------


def double(lake: Lake) -> None:
    """Append a copy of a row."""
    table = QueryBuilder().register("t", DeltaTable(lake.uri))
    row = table.execute('SELECT * FROM t WHERE partition = 1 AND "offset" = 3')
    write_deltalake(lake.uri, row.read_all(), mode="append")


def by_sql(statement: str) -> Callable[[Lake], None]:
    """Change the table with Spark."""

    def change(lake: Lake) -> None:
        lake.session.sql(statement.format(table=f"delta.`{lake.uri}`")).collect()

    return change


TAMPERING: Mapping[str, tuple[Callable[[Lake], None], str, int, int]] = {
    "double": (double, "duplicate", 1, 3),
    "null_is_not_empty": (
        by_sql("UPDATE {table} SET key = X'' WHERE partition = 1 AND offset = 0"),
        "altered",
        1,
        0,
    ),
    "header": (
        by_sql(
            "UPDATE {table} SET headers = array(named_struct('key', 'a', 'value', X'00')) "
            "WHERE partition = 1 AND offset = 4"
        ),
        "altered",
        1,
        4,
    ),
}
"""A change of the table, the kind of the difference, its partition and its offset."""


@pytest.mark.parametrize(
    "tampering",
    [
        pytest.param(name, marks=pytest.mark.faults) if name == "header" else name
        for name in TAMPERING
    ],
)
def test_verify_names_the_first_difference(
    lake: Lake, broker: BrokerStatus, tidemark: Command, tampering: str
) -> None:
    """Exit code 65, the kind and the place, as text and as JSON; other ranges are equal."""
    name = lake.spec.topic
    produce_values(broker.bootstrap, name, 5)
    produce_aborted(broker.bootstrap, name, [Record()] * 2)
    produce_values(broker.bootstrap, name, 6, partition=1)
    lake.run("first")
    equal = tidemark("verify", "events")
    assert (equal.code, "equal" in equal.out) == (ExitCode.OK, True), equal.err

    tamper, kind, partition, offset = TAMPERING[tampering]
    tamper(lake)
    found = tidemark("verify", "events")
    assert found.code == ExitCode.REFUSED
    assert f"{kind} partition {partition} offset {offset}" in found.err
    assert found.err.startswith("TableDiffers") or "\nTableDiffers" in found.err
    found = tidemark("verify", "events", "--json")
    assert found.code == ExitCode.REFUSED
    assert found.json["equal"] is False
    assert found.json["differences"] == {kind: 1}
    assert found.json["first"] == [
        {"difference": kind, "partition": partition, "offset": offset, "rows": 1, "plan": 1}
    ]

    other = str(1 - partition)
    assert tidemark("verify", "events", "--partition", other).code == ExitCode.OK
    only = ("--partition", str(partition), "--start", str(offset), "--end", str(offset + 1))
    assert tidemark("verify", "events", *only).code == ExitCode.REFUSED
    if offset > 0:
        before = ("--partition", str(partition), "--end", str(offset))
        assert tidemark("verify", "events", *before).code == ExitCode.OK


def test_verify_reports_compared_and_deleted_offsets(
    lake: Lake, broker: BrokerStatus, admin: AdminClient, tidemark: Command
) -> None:
    """S1: no group is created. Deleted offsets are counted; other ranges are refused."""
    name = lake.spec.topic
    produce_values(broker.bootstrap, name, 5)
    before = tidemark("verify", "events", "--json")
    assert (before.code, before.json["error"]) == (ExitCode.REFUSED, "NothingLanded")
    lake.run("first")
    produce_values(broker.bootstrap, name, 2)
    delete_records(admin, name, 2)
    groups = group_names(broker.bootstrap)
    ran = tidemark("verify", "events", "--json")
    assert ran.code == ExitCode.OK
    assert ran.json["partitions"] == [
        {
            "partition": 0,
            "offsets": 3,
            "records": 3,
            "rows": 3,
            "compacted": 0,
            "deleted": 2,
            "headers_unread": 0,
            "lost": 0,
        }
    ]
    assert group_names(broker.bootstrap) == groups
    for wrong in (("--partition", "1"), ("--start", "5"), ("--start", "3", "--end", "2")):
        refused = tidemark("verify", "events", *wrong, "--json")
        assert refused.code == ExitCode.REFUSED
        assert refused.json["error"] in ("NothingLanded", "InvalidSelection")

"""`tidemark records` over topics with transactions, deletion and compaction, and real tables."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.support.commands import Command
from tests.support.kafka_file_lake import KafkaFileLake
from tests.support.kafka_judge import group_names
from tests.support.plans import make_spec
from tests.support.topics import (
    COMPACTED,
    delete_records,
    make_topic,
    produce_rolled,
    recreate_topic,
    wait_for_compaction,
)
from tests.support.transactions import (
    Record,
    open_transaction,
    produce_aborted,
    produce_committed,
    produce_records,
)
from tests.support.typed_lake import TypedLake
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus

pytestmark = pytest.mark.broker

_DECODE = "decode: {publish: always, value: {format: string}}\n"


def lake_of(
    home: Path, broker: BrokerStatus, admin: AdminClient, *, decode: str = "", **config: str
) -> KafkaFileLake:
    """Return pipeline `events` of a home over a new topic."""
    topic = f"records-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic, config={"retention.ms": "-1", **config})
    (home / "pipelines").mkdir()
    (home / "pipelines" / "events.yaml").write_text(
        f"name: events\ntopic: {topic}\ntarget: bronze/events\nschedule: '@daily'\n"
        f"start: earliest\n{decode}"
    )
    spec = make_spec(topic=topic)
    return KafkaFileLake(home / "lakehouse", spec=spec, bootstrap=broker.bootstrap)


def land(lake: KafkaFileLake) -> None:
    """Land all unread offsets."""
    plan = lake.planner.plan(f"run {uuid.uuid4()}").plan
    assert plan is not None
    lake.table.prepare(lake.spec.name)
    lake.ingest.execute(plan.sequence)


def test_records_of_transactions_deletion_and_quarantine_are_shown_with_their_reasons(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    """The command leaves no consumer group, and changes nothing."""
    lake = lake_of(tmp_path, broker, admin, decode=_DECODE)
    topic = lake.spec.topic
    at = 1_772_366_400_000
    header = (("trace", b"\xff"), ("über", None))
    records = [
        Record(b"a", b'{"p":1.50}', header, at),
        Record(None, "x\u202e\n".encode(), (), at + 1),
    ]
    produce_committed(broker.bootstrap, topic, records)
    produce_aborted(broker.bootstrap, topic, [Record(value=b"aborted")])
    land(lake)
    typed = TypedLake(lake.root, broken={1})
    typed.bronze = lake
    typed.run()
    produce_records(broker.bootstrap, topic, [Record(b"k", None, (), at + 2)])
    with open_transaction(broker.bootstrap, topic, [Record(value=b"open")]):
        groups = group_names(broker.bootstrap)
        ask = ("records", "events", "--partition", "0", "--count", "8")
        shown = tidemark(*ask, "--offset", "0")
        assert group_names(broker.bootstrap) == groups
    assert shown.code == ExitCode.OK
    topic_id = lake.watermarks.topic_watermarks(topic, lake.spec.isolation_level).topic_id
    lines = shown.out.splitlines()
    after = "no row: after the end of the readable log; Kafka: after the end of the readable log. "
    assert lines[0].endswith(f"{topic}, id {topic_id}, partition 0, low watermark 0, log end 6")
    gap = next(line for line in lines if line.startswith("2 to 4"))
    assert gap.startswith("2 to 4  no row: gap (plan 1); Kafka: no visible record. No reader can")
    assert [line for line in lines[1:] if line != gap] == [
        "0  2026-03-01T12:00:00.000Z  landed in plan 1",
        "  key       UTF-8, 1 byte: a",
        "  value     JSON, 10 bytes:",
        "    {",
        '      "p": 1.50',
        "    }",
        '  header "trace" hex, 1 byte: ff',
        '  header "über" null',
        "  typed     decoded in plan 1",
        "    {",
        '      "key": {',
        '        "encoding": "UTF-8",',
        '        "text": "a"',
        "      },",
        '      "value": "{\\"p\\":1.50}"',
        "    }",
        "1  2026-03-01T12:00:00.001Z  landed in plan 1",
        "  key       null",
        "  value     UTF-8, 5 bytes:",
        "    x\\u{202E}",
        "    ",
        "  typed     quarantined in plan 1: malformed, value",
        "5  2026-03-01T12:00:00.002Z  no row: unread; Kafka: record. "
        "No plan contains the offset yet.",
        "  key       UTF-8, 1 byte: k",
        "  value     null",
        f"6 to 7  {after}Kafka has no readable record here yet.",
    ]

    by_time = tidemark(*ask, "--time", "2026-03-01T12:00:00.001Z", "--json").json
    assert (by_time["records"][0]["offset"], by_time["topic_id"]) == (1, topic_id)
    assert by_time["records"][0]["record"]["value"]["text"] == "x\u202e\n"
    bare = tidemark(*ask, "--offset", "0", "--no-payloads")
    assert "1.50" not in bare.out
    assert "landed in plan 1" in bare.out

    delete_records(admin, topic, before=6)
    first, *_, lost = tidemark(*ask, "--offset", "0", "--count", "6", "--json").json["records"]
    assert (first["kafka"], first["rows"][0]["key"]["text"]) == ("deleted", "a")
    assert lost["absence"]["state"] == "lost"
    assert tidemark("accept-loss", "events", "--reason", "outage").code == ExitCode.OK
    (lost,) = tidemark(*ask, "--offset", "5", "--count", "1", "--json").json["records"]
    assert lost["absence"]["state"] == "lost"
    assert lost["absence"]["detail"].endswith(" UTC: outage")

    assert (
        tidemark("undo", "events", "--plan", "1", "--reason", "bad", "--allow-loss").code
        == ExitCode.OK
    )
    (undone,) = tidemark(*ask, "--offset", "0", "--count", "1", "--json").json["records"]
    assert (undone["rows"], undone["absence"]["state"]) == ([], "lost")


def test_a_record_that_compaction_removed_before_the_landing_is_a_gap(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    lake = lake_of(tmp_path, broker, admin, **COMPACTED)
    topic = lake.spec.topic
    older = [Record(b"a", b"1"), Record(b"b", b"1")]
    produce_rolled(broker.bootstrap, topic, older, [Record(b"a", b"2")], [Record(b"z", b"1")])
    wait_for_compaction(broker.bootstrap, topic, {1, 2, 3})
    land(lake)
    found = tidemark("records", "events", "--partition", "0", "--offset", "0", "--json").json
    kinds = [
        (each["kafka"], len(each["rows"]), each["absence"] and each["absence"]["state"])
        for each in found["records"][:4]
    ]
    assert kinds == [
        ("no visible record", 0, "gap"),
        *[("record", 1, None)] * 3,
    ]


def test_a_row_that_another_program_changed_is_shown_beside_kafkas_record(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    lake = lake_of(tmp_path, broker, admin)
    produce_records(broker.bootstrap, lake.spec.topic, [Record(b"k", b"sent", (), 1_000)])
    land(lake)
    DeltaTable(lake.uri).update({"value": "arrow_cast('changed', 'Binary')"})
    shown = tidemark("records", "events", "--partition", "0", "--offset", "0", "--count", "1")
    assert shown.out.splitlines()[1:] == [
        "0  1970-01-01T00:00:01.000Z  landed in plan 1",
        "  key       UTF-8, 1 byte: k",
        "  value     UTF-8, 4 bytes: sent",
        "  DIFFERS   value",
        "  row of plan 1, 1970-01-01T00:00:01.000Z",
        "    key       UTF-8, 1 byte: k",
        "    value     UTF-8, 7 bytes: changed",
    ]


def test_an_aborted_record_stays_a_gap_after_the_isolation_level_has_changed(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    lake = lake_of(tmp_path, broker, admin)
    topic = lake.spec.topic
    produce_committed(broker.bootstrap, topic, [Record(value=b"one")])
    produce_aborted(broker.bootstrap, topic, [Record(value=b"aborted")])
    produce_committed(broker.bootstrap, topic, [Record(value=b"two")])
    land(lake)
    spec = tmp_path / "pipelines" / "events.yaml"
    spec.write_text(f"{spec.read_text()}isolation_level: read_uncommitted\n")
    page = ("records", "events", "--partition", "0", "--offset", "0", "--count", "5", "--json")
    kinds = [
        (each["kafka"], each["absence"] and each["absence"]["state"])
        for each in tidemark(*page).json["records"]
    ]
    assert kinds == [
        ("record", None),
        ("no visible record", "gap"),
        ("record", "gap"),
        ("no visible record", "gap"),
        ("record", None),
    ]
    (found,) = tidemark("coverage", "events", "--partition", "0", "--json").json["partitions"]
    assert found["states"]["gap"] == [[1, 4], [5, 6]]


def test_a_row_without_a_recorded_landing_is_marked(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    lake = lake_of(tmp_path, broker, admin)
    produce_records(broker.bootstrap, lake.spec.topic, [Record()])
    plan = lake.planner.plan("run").plan
    assert plan is not None
    lake.table.prepare(lake.spec.name)
    lake.land(plan)
    shown = tidemark("records", "events", "--partition", "0", "--offset", "0", "--count", "1")
    assert shown.out.splitlines()[1].endswith("  landed in plan 1 (not recorded)")


def test_rows_of_a_recreated_topic_are_found_by_its_id(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    lake = lake_of(tmp_path, broker, admin)
    produce_records(broker.bootstrap, lake.spec.topic, [Record(value=b"old")])
    land(lake)
    ask = ("records", "events", "--partition", "0", "--offset", "0", "--count", "1", "--json")
    old = tidemark(*ask).json["topic_id"]
    recreate_topic(admin, broker.bootstrap, lake.spec.topic)
    by_time = ("records", "events", "--partition", "0", "--time", "2026-03-01T12:00:00Z", "--json")
    assert tidemark(*by_time).json["error"] == "TopicRecreated"
    assert tidemark("accept-recreation", "events", "--reason", "test").code == ExitCode.OK
    new = tidemark(*ask).json
    assert new["topic_id"] != old
    assert new["records"][0]["absence"]["state"] == "after the end of the readable log"
    earlier = tidemark(*by_time, "--topic-id", old).json["problem"]
    assert "belong to an earlier topic" in earlier
    (entry,) = tidemark(*ask, "--topic-id", old).json["records"]
    assert (entry["kafka"], entry["rows"][0]["value"]["text"]) == (
        "another incarnation of the topic",
        "old",
    )


def test_wrong_partitions_and_times_are_refused(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    lake = lake_of(tmp_path, broker, admin)
    produce_records(broker.bootstrap, lake.spec.topic, [Record()])
    land(lake)
    for ask in (
        ("records", "events", "--partition", "7", "--offset", "0"),
        ("records", "events", "--partition", "7", "--time", "2026-03-01T12:00:00Z"),
        ("verify", "events", "--partition", "7"),
        ("coverage", "events", "--partition", "7"),
    ):
        refused = tidemark(*ask, "--json")
        assert (refused.code, refused.json["error"]) == (ExitCode.REFUSED, "InvalidSelection")
    start = ("records", "events", "--partition", "0")
    for wrong in ((), ("--time", "2026-03-01T12:00:00"), ("--time", "x")):
        assert tidemark(*start, *wrong).code == ExitCode.USAGE
    both = ("--offset", "1", "--time", "2026-03-01T12:00:00Z")
    assert tidemark(*start, *both).code == ExitCode.USAGE

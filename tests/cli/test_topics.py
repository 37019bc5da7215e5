"""`tidemark topics` over real topics: tables, JSON, and errors."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.commands import Command
from tests.support.registry import (
    avro_bytes,
    connection_environ,
    framed,
    registry_answers,
    registry_proxy,
)
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records, produce_values
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus


def write_spec(home: Path, name: str, topic: str, **keys: str) -> None:
    (home / "pipelines").mkdir(exist_ok=True)
    spec = {"name": name, "topic": topic, "schedule": "@daily", **keys}
    (home / "pipelines" / f"{name}.yaml").write_text(json.dumps(spec), encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in text.splitlines()
        if line.startswith("│")
    ]


@pytest.mark.broker
def test_s20_topics_are_listed_and_described_with_their_pipelines(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    topic = f"listed-{uuid.uuid4().hex[:6]}"
    config = {"retention.ms": "86400000"}
    make_topic(admin, broker.bootstrap, topic, partitions=2, config=config)
    produce_values(broker.bootstrap, topic, 6, partition=1)
    write_spec(tmp_path, "tides", topic)
    write_spec(tmp_path, "waves", "no-such-topic")
    write_spec(tmp_path, "winds", topic, connection="kafka_elsewhere")

    listed = tidemark("topics", "list")
    assert listed.code == ExitCode.OK
    assert f"cluster {broker.cluster_id}\n" in listed.out
    assert [topic, "2", "6", "0", "tides"] in rows(listed.out)
    assert "missing: no-such-topic, which waves should read" in listed.out
    assert "--connection kafka_elsewhere" in listed.out
    record = tidemark("topics", "list", "--json").json
    assert record["brokers"][0]["id"] == record["controller"] == 1
    (mine,) = (each for each in record["topics"] if each["topic"] == topic)
    assert (mine["partitions"], mine["records"]) == (2, 6)
    assert mine["pipelines"] == [{"pipeline": "tides", "connection": "kafka_default"}]
    assert (record["missing_topics"], record["other_connections"]) == (
        ["no-such-topic"],
        ["kafka_elsewhere"],
    )
    selected = tidemark("topics", "list", "--matching", f"{topic[:-2]}*", "--json").json
    assert [each["topic"] for each in selected["topics"]] == [topic]
    assert selected["missing_topics"] == []
    selected = tidemark("topics", "list", "--matching", "no-such-*").out
    assert (rows(selected), "missing: no-such-topic" in selected) == ([], True)

    described = tidemark("topics", "describe", topic).out
    assert ["0", "0", "0", "0", "1", "1", "1"] in rows(described)
    assert ["1", "0", "6", "6", "1", "1", "1"] in rows(described)
    assert ["retention.ms", "86400000", "dynamic topic config"] in rows(described)
    assert "segment.ms" not in described
    assert "read by tides" in described
    assert "segment.ms" in tidemark("topics", "describe", topic, "--all-settings").out
    record = tidemark("topics", "describe", topic, "--json").json
    assert record["topic"] == topic
    assert [(each["first"], each["end"]) for each in record["partitions"]] == [(0, 0), (0, 6)]
    values = {each["name"]: each["value"] for each in record["settings"]}
    assert values["retention.ms"] == "86400000"


@pytest.mark.broker
def test_describing_an_unknown_topic_suggests_a_similar_name(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    topic = f"typo-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic)
    (tmp_path / "pipelines").mkdir()
    ran = tidemark("topics", "describe", topic.replace("typo", "tpyo"))
    assert ran.code == ExitCode.REFUSED
    assert f"Did you mean {topic}" in ran.err


def test_an_undefined_connection_is_refused(offline: Command, tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    ran = offline("topics", "list", "--connection", "kafka_typo", "--json")
    assert ran.code == ExitCode.REFUSED
    assert ran.json["error"] == "InvalidConnection"


@pytest.mark.broker
def test_a_created_topic_has_its_partitions_and_settings(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    topic = f"made-{uuid.uuid4().hex[:6]}"
    wanted = ("topics", "create", topic, "--partitions", "3", "--config", "retention.ms=3600000")
    assert tidemark(*wanted, "--dry-run").code == ExitCode.OK
    assert topic not in admin.list_topics(timeout=10).topics
    assert tidemark(*wanted).out == f"created {topic} with 3 partitions\n"
    (tmp_path / "pipelines").mkdir()
    described = tidemark("topics", "describe", topic, "--json").json
    values = {each["name"]: each["value"] for each in described["settings"]}
    assert (len(described["partitions"]), values["retention.ms"]) == (3, "3600000")

    again = tidemark(*wanted, "--json")
    assert (again.code, again.json["error"]) == (ExitCode.REFUSED, "InvalidTopic")
    assert again.json["problem"].endswith("already exists.")
    shown = tidemark(*wanted, "--dry-run", "--json")
    assert shown.json["problem"] == again.json["problem"]
    for wrong in (("bad name", "--partitions", "1"), (f"{topic}-2", *wanted[3:5], "--config")):
        more = () if wrong[-1] != "--config" else ("no.such.setting=1",)
        refused = tidemark("topics", "create", *wrong, *more, "--json")
        assert (refused.code, refused.json["error"]) == (ExitCode.REFUSED, "InvalidTopic")


@pytest.mark.broker
def test_peek_shows_the_newest_or_oldest_records_readably(
    broker: BrokerStatus, admin: AdminClient, tidemark: Command
) -> None:
    topic = f"peek-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic, partitions=2)
    produce_records(
        broker.bootstrap,
        topic,
        [
            Record(partition=0, key=b"a", value=b'{"n": 1}', timestamp_ms=1_000),
            Record(partition=1, key=b"b", value=b"\xff\x00", timestamp_ms=2_000),
            Record(partition=0, key=b"c", value=None, timestamp_ms=3_000),
            Record(partition=1, key=None, value=b"text\x1b[31m", timestamp_ms=4_000),
        ],
    )
    newest = tidemark("topics", "peek", topic, "--records", "2")
    assert newest.code == ExitCode.OK
    heads = [line for line in newest.out.splitlines() if line.startswith("partition")]
    assert [line.split("  ")[0] for line in heads] == [
        "partition 0 offset 1",
        "partition 1 offset 1",
    ]
    assert "\x1b" not in newest.out
    oldest = tidemark("topics", "peek", topic, "--from-beginning", "--records", "2").out
    assert '"n": 1' in oldest
    assert "ff00" in oldest.lower().replace(" ", "")
    one = tidemark("topics", "peek", topic, "--partition", "1", "--json").json
    assert [(each["partition"], each["offset"]) for each in one["records"]] == [(1, 0), (1, 1)]
    wrong = tidemark("topics", "peek", topic, "--partition", "7", "--json")
    assert (wrong.code, wrong.json["error"]) == (ExitCode.REFUSED, "InvalidSelection")
    assert "no partition 7" in wrong.json["problem"]
    # Looking creates no group.
    groups = admin.list_consumer_groups(request_timeout=10).result().valid
    assert not [each.group_id for each in groups if topic in each.group_id]


@pytest.mark.broker
def test_peek_decodes_payloads_with_the_registry(
    broker: BrokerStatus,
    admin: AdminClient,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a registry, the command shows the bytes and the reason."""
    topic = f"peek-avro-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic)
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    values = [framed(3, avro_bytes(schema, {"n": 1})), framed(3, b"")]
    produce_records(broker.bootstrap, topic, [Record(value=each) for each in values])
    without = tidemark("topics", "peek", topic)
    assert "UTF-8, 6 bytes: " in without.out
    assert "not decoded: Connection 'schema_registry_default' is not defined." in without.err
    with registry_proxy(registry_answers({3: schema})) as proxy:
        for name, text in connection_environ({"url": f"http://{proxy.address}"}).items():
            monkeypatch.setenv(name, text)
        shown = tidemark("topics", "peek", topic)
        records = tidemark("topics", "peek", topic, "--json").json["records"]
    assert "value     AVRO of schema 3, 6 bytes:" in shown.out
    assert '"n": 1' in shown.out
    assert "value     malformed AVRO of schema 3" in shown.out
    decoded = {"schema_id": 3, "format": "AVRO", "malformed": False, "value": {"n": 1}}
    assert [each["decoded"] for each in records] == [
        {"value": decoded},
        {"value": {**decoded, "malformed": True, "value": None}},
    ]


@pytest.mark.broker
def test_peek_with_a_key_shows_only_the_records_with_this_key(
    broker: BrokerStatus, admin: AdminClient, tidemark: Command
) -> None:
    topic = f"peek-key-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic)
    keys = ("é".encode(), b"\xe9", b"e", None, "é".encode())
    produce_records(broker.bootstrap, topic, [Record(key=key) for key in keys])
    with_key = ("topics", "peek", topic, "--key", "é")
    found = tidemark(*with_key, "--json").json
    assert ([each["offset"] for each in found["records"]], found["complete"]) == ([0, 4], True)
    shown = tidemark(*with_key, "--from-beginning", "--records", "1")
    assert "partition 0 offset 0 " in shown.out
    assert "1 oldest record with this key" in shown.err
    none = tidemark("topics", "peek", topic, "--key", "no-such-key")
    assert (none.code, none.out.splitlines()[1:]) == (ExitCode.OK, ["no records with this key"])


@pytest.mark.broker
def test_peek_reports_that_its_search_for_a_key_is_incomplete(
    broker: BrokerStatus, admin: AdminClient, tidemark: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"peek-limit-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic)
    produce_values(broker.bootstrap, topic, 50)
    monkeypatch.setattr("tidemark.cli.topics._PEEK_BYTES", 1)
    shown = tidemark("topics", "peek", topic, "--key", "no-such-key")
    assert "no records with this key" in shown.out
    assert "other records with this key may be missing" in shown.err


def test_peek_refuses_a_key_that_is_not_utf8(offline: Command) -> None:
    """Python reads such an argument with surrogates."""
    ran = offline("topics", "peek", "payments", "--key", "\udcff")
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "--key needs UTF-8 text" in ran.err


@pytest.mark.broker
def test_peek_creates_no_topic(broker: BrokerStatus, admin: AdminClient, tidemark: Command) -> None:
    topic = f"missing-{uuid.uuid4().hex[:6]}"
    ran = tidemark("topics", "peek", topic, "--json")
    assert (ran.code, ran.json["error"]) == (ExitCode.REFUSED, "TopicMissing")
    assert topic not in admin.list_topics(timeout=10).topics

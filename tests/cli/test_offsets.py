"""`tidemark offsets` on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.cli.test_repairs import lake_over
from tests.conftest import TopicFactory
from tests.support.commands import Command, command_in
from tests.support.kafka_judge import DeliveredRecord, as_delivered, group_names, read_all
from tests.support.lake import Lake, row_as_delivered
from tests.support.topics import delete_records
from tests.support.transactions import (
    Record,
    produce_aborted,
    produce_committed,
    produce_records,
    produce_values,
)
from tidemark.app.app import App
from tidemark.core.errors import ExitCode
from tidemark.kafka.groups import KafkaGroupOffsets
from tidemark.local.broker import BrokerStatus
from tidemark.spec.model import StartPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker


@dataclass(frozen=True)
class Home:
    """A home with pipeline `events`, which has no start policy, over a topic of its own."""

    path: Path
    topic: str
    bootstrap: str
    command: Command

    @property
    def groups(self) -> KafkaGroupOffsets:
        """The cluster's groups."""
        return KafkaGroupOffsets({"bootstrap.servers": self.bootstrap})

    def run(self, *arguments: str) -> tuple[int, Any]:
        """The exit code of a command, and its document."""
        ran = self.command(*arguments, "--json")
        assert ran.out, ran.err
        return ran.code, ran.json

    def starts(self) -> Mapping[int, int]:
        """Return the start offsets of the pipeline."""
        return App.from_environment().control.ledger("events").starts


@pytest.fixture
def home(topic: TopicFactory, broker: BrokerStatus, tmp_path: Path, tidemark: Command) -> Home:
    """Five records in each of two partitions."""
    made = Home(
        path=tmp_path, topic=topic(partitions=2), bootstrap=broker.bootstrap, command=tidemark
    )
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.yaml").write_text(
        f'name: events\ntopic: {made.topic}\nschedule: "@daily"\n', encoding="utf-8"
    )
    for partition in (0, 1):
        produce_values(broker.bootstrap, made.topic, 5, partition=partition)
    return made


def offsets(document: Mapping[str, Any]) -> dict[int, int]:
    """Return the start offset of each partition."""
    return {each["partition"]: each["offset"] for each in document["partitions"]}


def test_offsets_of_a_group_start_a_pipeline_and_are_exported_to_another_group(
    home: Home, admin: AdminClient
) -> None:
    """Covers a dry run, a start, its repetition, a plan and an export."""
    old, lag = f"{home.topic}-old", f"{home.topic}-lag"
    assert home.run("plan", "events")[1]["error"] == "NoStartOffset"
    assert (
        home.run("offsets", "import", "events", "--from-group", old)[1]["error"] == "InvalidStart"
    )
    home.groups.commit(old, home.topic, {0: 2})
    delete_records(admin, home.topic, 3)
    code, document = home.run("offsets", "import", "events", "--from-group", old)
    assert (code, document["error"]) == (ExitCode.REFUSED, "InvalidStart")

    ask = (
        "offsets",
        "import",
        "events",
        "--from-group",
        old,
        "--others",
        "latest",
        "--reason",
        "moved",
    )
    code, document = home.run(*ask, "--dry-run")
    assert (code, document["outcome"], offsets(document)) == (ExitCode.OK, "draft", {0: 2, 1: 5})
    assert [each["deleted_unread"] for each in document["partitions"]] == [1, 0]
    assert home.starts() == {}
    assert home.run("offsets", "export", "events", "--group", lag)[1]["error"] == "NothingLanded"
    for outcome in ("recorded", "nothing to do"):
        code, document = home.run(*ask)
        assert (code, document["outcome"], offsets(document)) == (
            ExitCode.OK,
            outcome,
            {0: 2, 1: 5},
        )
    assert home.starts() == {0: 2, 1: 5}
    code, document = home.run("offsets", "import", "events", "--offsets", "0:4,1:4")
    assert (code, document["error"]) == (ExitCode.REFUSED, "AlreadyStarted")
    assert f"consumer group '{old}'; other partitions at latest; moved" in str(document)

    assert home.run("plan", "events")[1]["error"] == "LostRange"
    assert home.run("accept-loss", "events", "--reason", "known")[0] == ExitCode.OK
    code, document = home.run("plan", "events")
    assert (code, document["plan"]["ranges"]) == (ExitCode.OK, [[0, 3, 5]])

    exported = {"partition": 0, "before": None, "committed_offset": 3, "end": 5}
    code, document = home.run("offsets", "export", "events", "--group", lag, "--dry-run")
    assert (code, document["outcome"], document["partitions"][0]) == (
        ExitCode.OK,
        "draft",
        exported,
    )
    assert lag not in group_names(home.bootstrap)
    assert home.run("offsets", "export", "events", "--group", lag)[1]["outcome"] == "exported"
    assert home.groups.committed(lag, home.topic, [0, 1]) == {0: 3, 1: 5}
    assert home.groups.committed(old, home.topic, [0, 1]) == {0: 2}


def test_a_start_from_given_offsets_is_printed_as_text(home: Home) -> None:
    """A dry run records nothing; the last line is the outcome."""
    ask = ("offsets", "import", "events", "--offsets", "0:4,1:5")
    ran = home.command(*ask, "--dry-run")
    assert ran.code == ExitCode.OK, ran.err
    assert "started at the offsets given by hand" in ran.out
    assert "dry run: nothing was written" in ran.out
    assert home.starts() == {}
    assert home.command(*ask).out.splitlines()[-1] == "recorded"
    assert home.starts() == {0: 4, 1: 5}
    exported = home.command("offsets", "export", "events", "--group", f"{home.topic}-lag")
    assert exported.out.splitlines()[-1] == "exported"


def test_a_start_from_a_checkpoint_notes_its_uncommitted_batch(home: Home) -> None:
    """A note names the batch without a commit."""
    folder = home.path / "checkpoint"
    for batch, end in enumerate((1, 3)):
        for name in ("offsets", "commits")[: 2 - batch]:
            (folder / name).mkdir(parents=True, exist_ok=True)
            places = json.dumps({home.topic: {"0": end, "1": end}})
            text = f"v1\n{{}}\n{places}" if name == "offsets" else "v1\n{}"
            (folder / name / str(batch)).write_text(text, encoding="utf-8")
    code, document = home.run("offsets", "import", "events", "--from-checkpoint", str(folder))
    assert (code, document["outcome"], offsets(document)) == (ExitCode.OK, "recorded", {0: 1, 1: 1})
    assert document["reason"] == f"started at the Structured Streaming checkpoint {folder}, batch 0"
    (note,) = document["notes"]
    assert note.startswith("batch 1 was started")
    assert home.starts() == {0: 1, 1: 1}


# -- the other reader and Tidemark together ------------------------------------------------------


def land_by_streaming(lake: Lake, home: Path) -> tuple[list[DeliveredRecord], tuple[str, ...]]:
    """Let a Structured Streaming query land all records in a table of its own."""
    checkpoint, table = str(home / "checkpoint"), str(home / "land_by_streaming")
    query = (
        lake.session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", lake.connection["bootstrap.servers"])
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", lake.spec.topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", True)
        .load()
        .withColumnRenamed("timestampType", "timestamp_type")
        .writeStream.format("delta")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(table)
    )
    assert query.awaitTermination(120)
    rows = pa.table(DeltaTable(table).scan()).to_pylist()
    return [row_as_delivered(row) for row in rows], ("--from-checkpoint", checkpoint)


def read_by_group(lake: Lake, home: Path) -> tuple[list[DeliveredRecord], tuple[str, ...]]:
    """Let a member of a consumer group read some records, commit and leave."""
    group = f"{lake.spec.topic}-old"
    consumer = Consumer(
        {
            **lake.connection,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([lake.spec.topic])
    taken: list[DeliveredRecord] = []
    try:
        while len(taken) < 6:
            messages = consumer.consume(6 - len(taken), timeout=120)
            assert messages
            assert [m.error() for m in messages if m.error()] == []
            taken += map(as_delivered, messages)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    # A partition without a read record has no committed offset.
    return taken, ("--from-group", group, "--others", "earliest")


@pytest.mark.spark
@pytest.mark.parametrize(
    "read", [pytest.param(land_by_streaming, marks=pytest.mark.faults), read_by_group]
)
def test_another_reader_and_tidemark_together_read_each_record_once(
    read: Callable[[Lake, Path], tuple[list[DeliveredRecord], tuple[str, ...]]],
    spark: SparkSession,
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """I1: also records that are produced shortly before and after the start."""
    name, bootstrap = topic(partitions=3), broker.bootstrap
    lake = lake_over(name, spark, broker, tmp_path, start=StartPolicy.NONE)
    command = command_in(tmp_path, bootstrap, monkeypatch, capsys)
    headers = (("a", None), ("a", b""))
    produce_records(bootstrap, name, [Record(key=b"k", value=None, headers=headers)] * 4)
    produce_values(bootstrap, name, 3, partition=1)
    produce_aborted(bootstrap, name, [Record(partition=1)] * 2)
    produce_committed(bootstrap, name, [Record(partition=1)] * 2)

    theirs, beginning = read(lake, tmp_path)
    for partition in (0, 1):
        produce_values(bootstrap, name, 2, partition=partition)
    begun = command("offsets", "import", "events", *beginning, "--json")
    assert (begun.code, begun.json["outcome"]) == (ExitCode.OK, "recorded"), begun.err
    for partition in (0, 2):
        produce_values(bootstrap, name, 2, partition=partition)
    lake.run("first")

    ours = lake.delivered_rows()
    assert len(theirs) >= 6
    assert {r[:2] for r in theirs}.isdisjoint(r[:2] for r in ours)
    assert sorted([*theirs, *ours], key=lambda r: r[:2]) == read_all(bootstrap, name)
    assert {r.partition for r in ours} == {0, 1, 2}
    assert command("verify", "events").code == ExitCode.OK

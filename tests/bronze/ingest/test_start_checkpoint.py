"""Tests of start offsets from Structured Streaming checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import TopicFactory
from tests.support.transactions import produce_values
from tidemark.bronze.ingest.errors import InvalidStart
from tidemark.bronze.ingest.start_checkpoint import checkpoint_position
from tidemark.local.broker import BrokerStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METADATA = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
Source = Mapping[str, Any] | str


def kafka(**offsets: int) -> Mapping[str, Any]:
    """Return the line of a source that reads topic `events`: `kafka(p0=5)`."""
    return {"events": {name.removeprefix("p"): offset for name, offset in offsets.items()}}


def write(folder: Path, batch: int, sources: Sequence[Source], *, committed: bool = True) -> None:
    """Write the files of a batch as Spark does; their last line has no line break."""
    lines = ["v1", METADATA, *(s if isinstance(s, str) else json.dumps(s) for s in sources)]
    texts = {"offsets": "\n".join(lines)}
    if committed:
        texts["commits"] = 'v1\n{"nextBatchWatermarkMs":0}'
    for name, text in texts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / str(batch)).write_text(text, encoding="utf-8")
        (folder / name / f".{batch}.crc").write_bytes(b"crc")


def refusal(path: Path | str) -> InvalidStart:
    with pytest.raises(InvalidStart) as refused:
        checkpoint_position(str(path), "events")
    assert str(path) in refused.value.source
    return refused.value


def test_checkpoint_offsets_are_those_of_the_highest_committed_batch_number(tmp_path: Path) -> None:
    for batch in range(11):
        write(tmp_path, batch, [kafka(p0=batch, p1=2 * batch)])
    found = checkpoint_position(str(tmp_path), "events")
    assert found.offsets == {0: 10, 1: 20}
    assert found.source == f"Structured Streaming checkpoint {tmp_path}, batch 10"
    assert found.notes == ()


def test_a_batch_without_commit_is_ignored_and_noted(tmp_path: Path) -> None:
    """The stream's table may have the rows of the batch."""
    write(tmp_path, 6, [kafka(p0=5)])
    write(tmp_path, 7, [kafka(p0=9)], committed=False)
    found = checkpoint_position(str(tmp_path), "events")
    assert found.offsets == {0: 5}
    (note,) = found.notes
    assert note.startswith("batch 7 was started and not committed")


def test_checkpoint_sources_other_than_kafka_are_ignored(tmp_path: Path) -> None:
    """Covers files, a Delta table, a rate source, and a source without an offset."""
    delta = {"sourceVersion": 1, "reservoirId": "id", "reservoirVersion": 4, "index": -1}
    write(tmp_path, 0, ["-", {"logOffset": 3}, delta, "17", kafka(p0=5)])
    assert checkpoint_position(str(tmp_path), "events").offsets == {0: 5}


@pytest.mark.parametrize(
    ("sources", "actual"),
    [
        ([{"prices": {"0": 5}}], "topic 'prices'"),
        ([kafka(p0=5), kafka(p0=7)], "topics 'events', 'events'"),
        ([{"logOffset": 3}], "no Kafka offsets"),
        (["-"], "no Kafka offsets"),
    ],
)
def test_a_checkpoint_without_exactly_one_source_of_the_topic_is_refused(
    tmp_path: Path, sources: Sequence[Source], actual: str
) -> None:
    write(tmp_path, 0, sources)
    assert refusal(tmp_path).seen == actual


@pytest.mark.parametrize(
    "sources",
    [[{"events": {"0": 5}, "prices": {"0": 6}}], [{"prices": {"0": 6}}, kafka(p0=5)]],
    ids=["one source", "two sources"],
)
def test_a_checkpoint_of_several_topics_gives_each_pipeline_its_offsets(
    tmp_path: Path, sources: Sequence[Source]
) -> None:
    write(tmp_path, 0, sources)
    assert checkpoint_position(str(tmp_path), "events").offsets == {0: 5}
    assert checkpoint_position(str(tmp_path), "prices").offsets == {0: 6}


def test_a_checkpoint_without_a_committed_batch_is_refused(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    assert refusal(tmp_path).seen == "no batch"
    write(tmp_path, 0, [kafka(p0=5)], committed=False)
    assert refusal(tmp_path).seen == "batch 0 started, none committed"


def test_invalid_checkpoints_and_uris_are_refused_with_the_rule(tmp_path: Path) -> None:
    assert "offsets and commits" in refusal(tmp_path / "nosuch").rule
    assert "offsets and commits" in refusal(tmp_path).rule
    (tmp_path / "file").write_text("v1")
    assert "offsets and commits" in refusal(tmp_path / "file").rule
    for uri in ("s3://bucket/checkpoint", "file:/checkpoint", "hdfs://name/checkpoint"):
        assert "a local path" in refusal(uri).rule
    write(tmp_path, 0, [kafka(p0=5)])
    offsets = tmp_path / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace("v1", "v2", 1))
    assert refusal(tmp_path).seen == "'v2'"
    offsets.write_text("v1")
    assert "as Spark writes it" in refusal(tmp_path).rule
    offsets.unlink()
    assert "offsets/0" in refusal(tmp_path).rule


@pytest.mark.broker
@pytest.mark.spark
def test_offsets_of_a_checkpoint_written_by_spark_are_those_to_read_next(
    spark: SparkSession, broker: BrokerStatus, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        query = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", name)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(120)

    produce_values(broker.bootstrap, name, 5)
    run()
    assert checkpoint_position(str(checkpoint), name).offsets == {0: 5, 1: 0}
    produce_values(broker.bootstrap, name, 3, partition=1)
    run()
    found = checkpoint_position(str(checkpoint), name)
    assert (found.offsets, found.notes) == ({0: 5, 1: 3}, ())
    # As if the query was killed before it committed its last batch.
    newest = max(int(f.name) for f in (checkpoint / "commits").iterdir() if f.name.isdecimal())
    (checkpoint / "commits" / str(newest)).unlink()
    found = checkpoint_position(str(checkpoint), name)
    assert found.offsets == {0: 5, 1: 0}
    assert len(found.notes) == 1

"""The sample producer on a real broker, checked by librdkafka and by Kafka's log dump."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections import Counter, defaultdict

import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import TopicFactory
from tests.support.kafka_judge import log_ranges, read_all
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.local.broker import BrokerStatus
from tidemark.local.producer import ensure_topic, produce, producer_settings
from tidemark.local.samples import SAMPLES
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout

BASE_MS = 1_767_340_800_000
FOREVER = {"retention.ms": "-1"}


def _client(broker: BrokerStatus) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap}


def _java_partition(key: bytes, partitions: int) -> int:
    """The partition a Java producer chooses: murmur2 as in org.apache.kafka.common.utils.Utils."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    state = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        state = (state * factor & mask) ^ word
    if whole < len(key):
        state = (state ^ int.from_bytes(key[whole:], "little")) * factor & mask
    state = (state ^ state >> 13) * factor & mask
    state ^= state >> 15
    return (state & 0x7FFFFFFF) % partitions


def test_s19_producer_settings_are_acks_all_and_idempotent() -> None:
    """S19: settings of the connection cannot override them."""
    settings = producer_settings({"bootstrap.servers": "kafka:9092", "acks": "1"})
    assert settings["acks"] == "all"
    assert settings["enable.idempotence"] == "true"
    assert settings["partitioner"] == "murmur2"
    assert settings["bootstrap.servers"] == "kafka:9092"


@pytest.mark.broker
def test_s19_log_shows_an_idempotent_producer(
    broker: BrokerStatus, layout: Layout, topic: TopicFactory
) -> None:
    """S19: every batch in the log carries a producer id and sequence numbers from 0 on."""
    name = topic(partitions=1)
    produce(_client(broker), "streams-intro", topic=name)
    segment = broker.home / "node-1" / "data" / f"{name}-0" / "00000000000000000000.log"
    tool = ("-cp", f"{layout.kafka_jars}/*", "kafka.tools.DumpLogSegments")
    dump = subprocess.run(
        ["java", *tool, "--files", str(segment)],
        capture_output=True,
        text=True,
        check=True,
    )
    batches = [line for line in dump.stdout.splitlines() if line.startswith("baseOffset:")]
    assert batches
    assert all("producerId: -1" not in batch for batch in batches)
    assert "baseSequence: 0 " in batches[0]
    assert "lastSequence: 4 " in batches[-1]


@pytest.mark.broker
def test_s22_first_example_can_be_read_repeatedly(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """S22: five keyed records in three partitions; each key's records keep their order."""
    name = topic(partitions=3)
    counts = produce(_client(broker), "streams-intro", topic=name)
    records = read_all(broker.bootstrap, name)
    values = defaultdict(list)
    for record in records:
        values[record.key].append(record.value)
    assert values == {
        b"foo": [b"first message", b"second message", b"third message"],
        b"bar": [b"first message", b"second message"],
    }
    assert counts == Counter(record.partition for record in records)
    assert records == read_all(broker.bootstrap, name)


@pytest.mark.broker
def test_s16_s23_prices_arrive_unchanged_in_the_partitions_of_a_java_producer(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """S23 and S16: no record is lost, and keys are partitioned by murmur2."""
    name = topic(partitions=6, config=FOREVER)
    counts = produce(_client(broker), "prices", records=2_000, base_ms=BASE_MS, topic=name)
    records = read_all(broker.bootstrap, name)
    sent = SAMPLES["prices"].records(seed=1, start=0, count=2_000, base_ms=BASE_MS)
    assert sorted(
        (r.timestamp_ms, r.key, r.value, r.headers, r.timestamp_type) for r in records
    ) == [(s.timestamp_ms, s.key, s.value, s.headers, 1) for s in sent]
    assert all(r.partition == _java_partition(r.key, 6) for r in records if r.key is not None)
    assert counts == Counter(record.partition for record in records)
    assert max(counts.values()) >= 1_200


@pytest.mark.broker
def test_s11_s23_order_of_a_ticker_is_kept(broker: BrokerStatus, topic: TopicFactory) -> None:
    """S23 and S11: within a key, offsets follow the order of production."""
    name = topic(partitions=6)
    produce(_client(broker), "prices", records=500, topic=name)
    ids = defaultdict(list)
    for record in read_all(broker.bootstrap, name):
        if record.key is not None and record.value is not None:
            ids[record.key].append(json.loads(record.value)["quote_id"])
    assert len(ids) == 8
    assert all(quotes == sorted(quotes) for quotes in ids.values())


@pytest.mark.broker
def test_a_second_batch_continues_the_ids_of_the_first(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    """No id is repeated or omitted."""
    name = topic(partitions=3)
    for _ in range(2):
        produce(_client(broker), "orders", records=100, topic=name)
    records = read_all(broker.bootstrap, name)
    ids = {json.loads(r.value)["order_id"] for r in records if r.value is not None}
    assert len(records) == 200
    assert ids == {f"O{n:09d}" for n in range(200) if n % 40 != 12}


@pytest.mark.broker
def test_a_missing_topic_is_created_with_the_samples_partitions(
    broker: BrokerStatus, admin: AdminClient
) -> None:
    """Later calls do not change the topic."""
    name = f"made-by-produce-{uuid.uuid4().hex[:8]}"
    assert sum(produce(_client(broker), "orders", records=10, topic=name).values()) == 10
    assert sorted(log_ranges(broker.bootstrap, name)) == [0, 1, 2]
    assert ensure_topic(admin, name, 7) is False
    assert sorted(log_ranges(broker.bootstrap, name)) == [0, 1, 2]


@pytest.mark.broker
def test_the_default_timestamps_end_now(broker: BrokerStatus, topic: TopicFactory) -> None:
    """Brokers may refuse timestamps in the future."""
    name = topic()
    produce(_client(broker), "orders", records=50, topic=name)
    times = [record.timestamp_ms for record in read_all(broker.bootstrap, name)]
    assert 0 <= time.time() * 1000 - max(times) < 60_000


@pytest.mark.broker
def test_progress_is_reported_every_thousand_records_and_at_the_end(
    broker: BrokerStatus, topic: TopicFactory
) -> None:
    calls: list[tuple[int, int]] = []
    produce(
        _client(broker),
        "prices",
        records=2_500,
        topic=topic(),
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(1_000, 2_500), (2_000, 2_500), (2_500, 2_500)]


@pytest.mark.slow
def test_an_unreachable_broker_is_named_before_anything_is_produced() -> None:
    """I7: the error is transient, comes within ten seconds, and names the address."""
    (port,) = free_ports("127.0.0.1", 1)
    client = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": "0"}
    begun = time.monotonic()
    with pytest.raises(KafkaUnavailable, match=f"127.0.0.1:{port}") as caught:
        produce(client, "orders", records=1)
    assert time.monotonic() - begun < 10
    assert caught.value.exit_code.retryable


def test_an_unknown_sample_is_refused_before_any_request() -> None:
    """The call needs no broker."""
    with pytest.raises(KeyError, match="price"):
        produce({"bootstrap.servers": "127.0.0.1:1"}, "price")

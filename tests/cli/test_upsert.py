"""`tidemark upsert` on real parts: from Kafka to one row for each key."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.commands import Command
from tests.support.kafka_judge import read_ranges
from tests.support.transactions import Record, produce_records
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

_SPEC = """
name: events
topic: {topic}
schedule: "@daily"
start: {start}
decode:
  publish: always
  key: {{format: string}}
  value: {{format: string}}
  upsert: {{deletes: hard}}
"""


@pytest.mark.faults
def test_upsert_table_has_the_last_record_of_each_key_in_kafka(
    tmp_path: Path, broker: BrokerStatus, topic: TopicFactory, tidemark: Command
) -> None:
    """Compared with librdkafka: the last record of each key in its partition, without tombstones.

    Offsets decide the order, although a backfill lands the first records last.
    """
    name = topic(partitions=2)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.yaml").write_text(_SPEC.format(topic=name, start="latest"))

    def produce(number: int) -> None:
        produce_records(
            broker.bootstrap,
            name,
            [
                Record(
                    value=None if (n + number) % 7 == 0 else b"%d" % (n + 100 * number),
                    key=None if n % 11 == 0 else b"k%d" % (n % 9),
                    partition=n % 2,
                )
                for n in range(40)
            ],
        )

    def latest() -> dict[tuple[int, str], tuple[int, str]]:
        rows = pa.table(
            DeltaTable(tmp_path / "lakehouse" / "silver" / "events_latest").scan()
        ).to_pylist()
        found = {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in rows}
        assert len(found) == len(rows)
        return found

    def newest_in_kafka(start: int) -> dict[tuple[int, str], tuple[int, str]]:
        found: dict[tuple[int, str], tuple[int, str]] = {}
        for record in read_ranges(broker.bootstrap, name, dict.fromkeys((0, 1), (start, 10**9))):
            if record.key is None:
                continue
            place = (record.partition, record.key.decode())
            found.pop(place, None)
            if record.value is not None:
                found[place] = (record.offset, record.value.decode())
        return found

    assert "nothing to do" in tidemark("upsert", "events").out
    produce(0)
    begun = len(read_ranges(broker.bootstrap, name, {0: (0, 10**9)}))
    assert tidemark("ingest", "events").code == ExitCode.OK
    produce(1)
    rounds = (
        (("ingest", "events"), "all records", begun),
        (("backfill", "events", "--retained"), "affected keys", 0),
    )
    for landing, scope, start in rounds:
        for words in (landing, ("decode", "events")):
            assert tidemark(*words).code == ExitCode.OK
        (draft,) = tidemark("upsert", "events", "--dry-run", "--json").json
        (done,) = tidemark("upsert", "events", "--json").json
        assert draft["scope"] == done["scope"] == scope
        assert draft["pipeline"] == done["pipeline"] == "events"
        silver = DeltaTable(tmp_path / "lakehouse" / "silver" / "events")
        assert draft["typed_version"] == done["typed_version"] == silver.version()
        assert latest() == newest_in_kafka(start)
        assert "nothing to do" in tidemark("upsert", "events").out
    # A key whose tombstone is newer than its records in the backfill.
    assert (0, "k7") not in latest()
    first = read_ranges(broker.bootstrap, name, {0: (0, begun)})
    assert any(record.key == b"k7" and record.value for record in first)

"""Hostile logs: timestamps at the limits of 64 bits, in every command and another time zone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.commands import Command
from tests.support.kafka_judge import read_all
from tests.support.lake import row_as_delivered
from tests.support.raw_batches import RawRecord, produce_raw
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults]

_ANY_TIME = {
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
}
_SPEC = """
name: events
topic: {topic}
schedule: "@daily"
start: earliest
decode:
  publish: always
  key: {{format: string}}
  value: {{format: string}}
  upsert: {{deletes: hard}}
"""
_TIMES_MS = [
    -62_135_596_800_000,
    -2_461_449_600_000,
    -1,
    0,
    1_767_225_600_123,
    253_402_300_800_000,
    2**63 - 1,
    -(2**63),
    1_767_225_600_124,
]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_every_command_handles_timestamps_of_64_bits(
    tmp_path: Path,
    broker: BrokerStatus,
    topic: TopicFactory,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
    zone: str,
) -> None:
    """`backfill --replace` fixes a row with another timestamp."""
    monkeypatch.setenv("TZ", zone)
    name = topic(config=_ANY_TIME)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.yaml").write_text(_SPEC.format(topic=name))
    for number, timestamp_ms in enumerate(_TIMES_MS):
        record = RawRecord(key=b"%d" % (number % 4), value=b"v", timestamp_ms=timestamp_ms)
        produce_raw(broker.bootstrap, name, [record])
    bronze, typed = (tmp_path / "lakehouse" / f / "events" for f in ("bronze", "silver"))

    def run(*words: str, code: ExitCode = ExitCode.OK) -> None:
        ran = tidemark(*words)
        assert ran.code == code, (words, ran.out, ran.err)

    def check_rows() -> None:
        rows = pa.table(DeltaTable(bronze).scan()).to_pylist()
        assert sorted(map(row_as_delivered, rows)) == read_all(broker.bootstrap, name)
        run("verify", "events")

    run("status")
    run("ingest", "events")
    check_rows()
    # An older reader shifted .NET's DateTime.MinValue by two days.
    DeltaTable(bronze).update(
        updates={"timestamp": "\"timestamp\" + INTERVAL '2' DAY"}, predicate='"offset" = 0'
    )
    run("verify", "events", code=ExitCode.REFUSED)
    run("backfill", "events", "--offsets", "0:0-1", "--replace", "--reason", "moved")
    check_rows()
    run("check", "events")
    run("decode", "events")
    run("verify", "events")
    run("upsert", "events")
    rows = pa.table(DeltaTable(typed).scan()).to_pylist()
    assert [
        row["timestamp_out_of_range_ms"] for row in sorted(rows, key=lambda r: r["offset"])
    ] == [ms if abs(ms) >= 253_402_300_800_000 else None for ms in _TIMES_MS]
    run("status")
    run("report", "events")
    run("coverage", "events")
    for output in ((), ("--json",)):
        run("records", "events", "--partition", "0", "--offset", "0", "--count", "9", *output)
        run("topics", "peek", name, "--from-beginning", *output)
        for schema in ("bronze", "silver"):
            run("sql", f'SELECT * FROM {schema}.events ORDER BY "offset"', *output)
    run("maintain", "events")
    check_rows()

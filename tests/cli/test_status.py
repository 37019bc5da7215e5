"""`tidemark status` over a real topic: JSON, text, and the status table."""

from __future__ import annotations

import re
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.support.commands import Command
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.spark.sockets import free_ports

pytestmark = pytest.mark.broker

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RETENTION = timedelta(days=7)
OLDEST = timedelta(days=3, hours=5, minutes=30)
"""Age of the oldest record. Its rounded text does not change within half an hour."""
SPECS = {
    "calm": ("stalled_minutes: 10000, runway_minutes: 5000", ""),
    "slow": ("stalled_minutes: 0, runway_minutes: 5430, lag_records: 3", "records_per_run: 2"),
    "tides": ("stalled_minutes: 4600, runway_minutes: 0", ""),
}
"""Alarms and limits. The oldest record is 4650 minutes old, and Kafka keeps it for 5430 more."""


def begin(tidemark: Command, home: Path, topic: str) -> None:
    """Plan all pipelines while the topic is empty."""
    (home / "pipelines").mkdir()
    for name, (alarms, limits) in SPECS.items():
        (home / "pipelines" / f"{name}.yaml").write_text(
            f'name: {name}\ntopic: {topic}\nschedule: "@daily"\nstart: earliest\n'
            f"alarms: {{{alarms}}}\nlimits: {{{limits}}}\n",
            encoding="utf-8",
        )
    for name in SPECS:
        assert tidemark("plan", name).code == ExitCode.OK


def by_duckdb() -> list[dict[str, Any]]:
    """Return the rows of the status table, read by DuckDB."""
    status = pa.table(DeltaTable(App.from_environment().layout.status_table).scan())
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("status", status)
        rows = connection.execute("SELECT * FROM status ORDER BY pipeline").fetchall()
        names = [column[0] for column in connection.description]
    return [dict(zip(names, row, strict=True)) for row in rows]


def names(errors: list[dict[str, Any]]) -> str | None:
    """Return the names of errors in the form of the status table."""
    return ", ".join(each["error"] for each in errors) or None


def test_json_text_and_status_table_have_the_same_values(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    """Age and runway follow the timestamps of records; each pipeline has its own alarm rules."""
    topic = f"tide-{uuid.uuid4().hex[:6]}"
    kept_ms = str(RETENTION // timedelta(milliseconds=1))
    make_topic(admin, broker.bootstrap, topic, partitions=3, config={"retention.ms": kept_ms})
    begin(tidemark, tmp_path, topic)
    (empty,) = tidemark("status", "calm", "--json").json
    assert (empty["lag"], empty["lag_seconds"], empty["runway_seconds"]) == (0, None, None)
    assert (empty["forecast"], empty["new_offsets_per_second"]) == ("caught up", 0)

    now_ms = int(time.time() * 1000)
    old_ms, new_ms = (
        now_ms - age // timedelta(milliseconds=1) for age in (OLDEST, timedelta(days=1))
    )
    stamps = [(0, old_ms), (0, new_ms), (0, new_ms), (1, new_ms)]
    records = [Record(timestamp_ms=stamp, partition=partition) for partition, stamp in stamps]
    produce_records(broker.bootstrap, topic, records)
    assert tidemark("plan", "calm").code == ExitCode.OK

    printed = tidemark("status", "--record", "--exit-code", "--json")
    assert printed.code == ExitCode.REFUSED
    statuses = {each["pipeline"]: each for each in printed.json}
    for each in statuses.values():
        checked_at = datetime.fromisoformat(each["checked_at"])
        old, new = (checked_at - EPOCH - timedelta(milliseconds=ms) for ms in (old_ms, new_ms))
        left = [(RETENTION - age).total_seconds() for age in (old, new)]
        expected = {
            "lag": [3, 1, 0],
            "lag_seconds": [old.total_seconds(), new.total_seconds(), None],
            "runway_seconds": [*left, None],
        }
        assert {key: [here[key] for here in each["partitions"]] for key in expected} == expected
        assert (each["lag"], each["lag_seconds"]) == (4, old.total_seconds())
        assert each["runway_seconds"] == left[0]
        arriving = 3 / old.total_seconds() + 1 / new.total_seconds()
        assert each["new_offsets_per_second"] == pytest.approx(arriving)
        assert (each["topic"], each["records"], each["problem"]) == (topic, 0, None)
    assert {name: each["forecast"] for name, each in statuses.items()} == {
        "calm": "with the next run",
        "slow": "unknown",
        "tides": "with the next run",
    }
    assert {name: names(each["alarms"]) for name, each in statuses.items()} == {
        "calm": None,
        "slow": "RunwayTooShort, LagTooLarge",
        "tides": "PipelineStalled",
    }

    assert by_duckdb() == [
        {
            **{k: v for k, v in each.items() if k not in ("partitions", "unchecked_plans")},
            "checked_at": datetime.fromisoformat(each["checked_at"]),
            "lag_checked_at": datetime.fromisoformat(each["checked_at"]),
            "open_plans": len(each["open_plans"]),
            "open_since": each["open_since"] and datetime.fromisoformat(each["open_since"]),
            "blocked_plans": len(each["blocked_plans"]),
            "alarms": names(each["alarms"]),
        }
        for _, each in sorted(statuses.items())
    ]

    shown = tidemark("status", "calm", "tides", "--exit-code", "--wide")
    assert shown.code == ExitCode.REFUSED
    rows = [[cell.strip() for cell in line.split("│")] for line in shown.out.splitlines()]
    waits = ["4", "3 d 5 h", "3 d 18 h"]
    landed = ["with the next run", "0", "-", "-", "-"]
    assert ["", "calm", topic, *waits, *landed, "1", "-", "open", ""] in rows
    assert ["", "tides", topic, *waits, *landed, "-", "-", "PipelineStalled", ""] in rows
    assert re.search(r"^calm: plan 1 has been open for \d+ s \(1 run\)$", shown.out, re.MULTILINE)
    assert ["", "0", "0", "0", "3", "3", "3 d 5 h", "3 d 18 h", ""] in rows
    assert "tides: PipelineStalled" in shown.err
    assert "calm: " not in shown.err
    brief = tidemark("status", "calm", "--exit-code")
    assert brief.code == ExitCode.OK
    rows = [[cell.strip() for cell in line.split("│")] for line in brief.out.splitlines()]
    assert ["", "calm", *waits, "-", "open", ""] in rows
    assert ["", "0", "0", "3", "3", "3 d 5 h", "3 d 18 h", ""] in rows


def test_status_prints_committed_offsets_while_one_cluster_is_away(
    broker: BrokerStatus,
    admin: AdminClient,
    tmp_path: Path,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends with the code of Kafka's error within ten seconds, and keeps the recorded lag."""
    topic = f"away-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic, partitions=2)
    (tmp_path / "pipelines").mkdir()
    for name in ("far", "near"):
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(
            f'name: {name}\ntopic: {topic}\nschedule: "@daily"\nstart: earliest\n'
            f"connection: kafka_{name}\n",
            encoding="utf-8",
        )
        connection = kafka_connection(broker.bootstrap)
        monkeypatch.setenv(connection_variable(f"kafka_{name}"), connection)
    assert tidemark("plan", "far").code == ExitCode.OK
    produce_records(broker.bootstrap, topic, [Record(partition=1)] * 3)
    known = {each["pipeline"]: each for each in tidemark("status", "--record", "--json").json}
    assert known["far"]["lag"] == 3

    address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    monkeypatch.setenv(connection_variable("kafka_far"), kafka_connection(address))
    begun = time.monotonic()
    shown = tidemark("status", "far", "near", "--exit-code")
    assert time.monotonic() - begun < 10
    assert shown.code == ExitCode.TRANSIENT
    rows = [[cell.strip() for cell in line.split("│")] for line in shown.out.splitlines()]
    assert ["", "far", "-", "-", "-", "-", "KafkaUnavailable", ""] in rows
    assert "not started" in next(row for row in rows if row[1:2] == ["near"])
    for partition in ("0", "1"):
        assert ["", partition, "0", "-", "-", "-", "-", ""] in rows
    assert shown.err.startswith("far: KafkaUnavailable: No Kafka broker can be reached at ")
    assert address in shown.err

    recorded = tidemark("status", "--record", "--json")
    assert recorded.code == ExitCode.TRANSIENT
    far, near = recorded.json
    assert (far["lag"], far["lag_checked_at"]) == (None, None)
    assert [each["committed_offset"] for each in far["partitions"]] == [0, 0]
    assert names(far["alarms"]) == far["problem"]["error"] == "KafkaUnavailable"
    assert near["problem"] is None
    row, _ = by_duckdb()
    assert (row["lag"], row["problem"]) == (3, "KafkaUnavailable")
    assert row["lag_checked_at"] == datetime.fromisoformat(known["far"]["checked_at"])
    assert row["checked_at"] > row["lag_checked_at"]

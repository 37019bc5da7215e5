"""`tidemark coverage` over a real topic: bars, zoom, and JSON."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.commands import Command
from tests.support.topics import delete_records, make_topic
from tests.support.transactions import produce_values
from tidemark.core.errors import ExitCode
from tidemark.dev.broker import BrokerStatus

pytestmark = pytest.mark.broker


def test_bars_and_spans_show_landed_planned_lost_and_unread_offsets(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    topic = f"cover-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic, partitions=2)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "tides.yaml").write_text(
        f'name: tides\ntopic: {topic}\nschedule: "@daily"\nstart: earliest\n', encoding="utf-8"
    )
    assert tidemark("plan", "tides").code == ExitCode.OK
    produce_values(broker.bootstrap, topic, 6)
    delete_records(admin, topic, before=2)

    first, second = tidemark("coverage", "tides", "--json").json
    assert first["states"] == {"lost": [[0, 2]], "unread": [[2, 6]]}
    assert (first["low_watermark"], first["end"], first["committed_offset"]) == (2, 6, 0)
    assert second["states"] == {}

    assert tidemark("accept-loss", "tides", "--reason", "test").code == ExitCode.OK
    assert tidemark("plan", "tides").code == ExitCode.OK
    produce_values(broker.bootstrap, topic, 2)
    shown = tidemark("coverage", "tides").out.splitlines()
    assert shown == [
        "    0 XXoooo.. 0 to 8",
        "    1  no offsets",
        "      X lost   . unread   o in an open plan",
    ]
    zoomed = tidemark("coverage", "tides", "--partition", "0", "--start", "1", "--end", "4").out
    assert "    0 Xoo 1 to 4" in zoomed
    rows = [[cell.strip() for cell in line.split("│")] for line in zoomed.splitlines()]
    assert ["", "1", "2", "1", "lost", ""] in rows
    assert ["", "2", "4", "2", "in an open plan", ""] in rows
    assert tidemark("coverage", "tides", "--partition", "7").code == ExitCode.USAGE

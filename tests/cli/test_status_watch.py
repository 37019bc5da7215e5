"""`tidemark status --watch`: in place on a terminal, in blocks or lines elsewhere."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import pytest
from confluent_kafka.admin import AdminClient
from rich.console import Console

from tests.support.commands import Command
from tests.support.consoles import a_status
from tests.support.interrupts import processes_with_sigint
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.cli import output
from tidemark.cli.status import look_record, look_tables
from tidemark.core.errors import ExitCode
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.local.broker import BrokerStatus
from tidemark.ops.report.observed_status import ObservedStatus

pytestmark = pytest.mark.slow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DOWN = KafkaUnavailable(operation="describe", reason="no broker " * 20)
LONG = "a_pipeline_with_a_long_name_" * 3


# -- updates ---------------------------------------------------------------------------------------


def shown(seen: dict[str, ObservedStatus], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an update as on a terminal of 80 columns."""
    monkeypatch.setattr(output.out, "_width", 80)
    file = io.StringIO()
    console = Console(width=80, file=file, **output._PLAIN)
    console.print(look_tables(seen, NOW, with_partitions=True))
    return file.getvalue()


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table with or without lines between its columns."""
    return [re.split(r" *│ *|  +", line.strip("│ ")) for line in text.splitlines()]


def observed(lag: int, later: int, **changes: Any) -> ObservedStatus:
    """Two statuses, a minute apart."""
    seen = ObservedStatus()
    for age, each in ((120, lag), (60, later)):
        status = replace(a_status(each), checked_at=NOW - timedelta(seconds=age), **changes)
        seen = seen.updated(status, 0)
    return seen


@pytest.mark.parametrize(
    ("lag", "later", "trend"),
    [
        (0, 7, "↑ 7.0"),
        (1_234, 0, "↓ 1.2k"),
        (0, 1_234_567, "↑ 1.2M"),
        (25_000, 5_000, "↓ 20k"),
        (5, 5, "→ 0"),
    ],
)
def test_the_trend_is_an_arrow_with_the_change_per_minute(
    lag: int, later: int, trend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {"prices": observed(lag, later)}
    (row,) = (row for row in rows(shown(seen, monkeypatch)) if row[:1] == ["prices"])
    assert row[1:3] == [f"{later:,}", trend]
    (record,) = look_record(seen, NOW)["pipelines"]
    assert record["lag_per_minute"] == later - lag


def test_values_that_cannot_be_read_again_stay_with_their_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {"prices": observed(5, 9).updated(DOWN, 0), "orders": ObservedStatus().updated(DOWN, 0)}
    text = shown(seen, monkeypatch)
    (row,) = (row for row in rows(text) if row[:1] == ["prices"])
    assert row[1:3] == ["9", "↑ 4.0"]
    states = " ".join(row[-1] for row in rows(text))
    assert "KafkaUnavailable, values 1 min old" in states
    assert "prices: KafkaUnavailable: Kafka is unavailable" in text
    prices, orders = json.loads(json.dumps(look_record(seen, NOW)))["pipelines"]
    assert (prices["lag"], prices["age_seconds"]) == (9, 60)
    assert prices["read_error"]["error"] == "KafkaUnavailable"
    assert (orders["pipeline"], orders["age_seconds"]) == ("orders", None)


def test_an_update_fits_into_80_columns_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown({LONG: observed(0, 1_234_567, pipeline=LONG).updated(DOWN, 0)}, monkeypatch)
    assert max(map(len, text.splitlines())) <= 80
    assert LONG in "".join(text.split())
    assert {"1,234,567", "↑ 1.2M"} <= {cell for row in rows(text) for cell in row}
    assert " ".join(text.split()).count("no broker") == 20


# -- processes -------------------------------------------------------------------------------------


@contextmanager
def watching(home: Path, *arguments: str, terminal: bool = False) -> Iterator[IO[str]]:
    """Run `tidemark status --watch`; yield its output, then interrupt it as Ctrl-C does."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {key: each for key, each in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    home_of_test = {"TIDEMARK_HOME": str(home), "TIDEMARK_PIPELINES": str(home / "pipelines")}
    command = [str(Path(sys.executable).parent / "tidemark"), "status", "--watch", "--interval=1"]
    with processes_with_sigint():
        process = subprocess.Popen(
            [*command, *arguments],
            env={**kept, **home_of_test, "TERM": "xterm"},
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
        )
    os.close(writer)
    with process, open(reader, encoding="utf-8") as printed:
        try:
            yield printed
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
            assert process.stderr is not None
            assert (code, process.stderr.read()) == (ExitCode.OK, "")


def a_spec(home: Path, name: str, topic: str, connection: str) -> None:
    (home / "pipelines").mkdir(exist_ok=True)
    (home / "pipelines" / f"{name}.yaml").write_text(
        f'name: {name}\ntopic: {topic}\nschedule: "@daily"\nstart: earliest\n'
        f"connection: {connection}\n",
        encoding="utf-8",
    )


def test_a_terminal_shows_each_update_in_place(tmp_path: Path) -> None:
    """Ctrl-C ends the watch with exit code 0, and the cursor is visible again."""
    a_spec(tmp_path, LONG[:60], "t", "kafka_none")
    with watching(tmp_path, terminal=True) as printed:
        text = ""
        while text.count("Pipelines at") < 3:
            text += printed.readline()
    between = text.split("Pipelines at")[1]
    assert "InvalidConnection" in re.sub(r"\s+", "", between)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", each) for each in between.splitlines()]
    assert max(map(len, lines[1:])) <= 80
    # Each update moves the cursor from the last line of the previous one to its first.
    assert between.count("\x1b[1A") == len(lines) - 2


def test_a_pipe_gets_a_plain_block_for_each_update(tmp_path: Path) -> None:
    a_spec(tmp_path, "prices", "t", "kafka_none")
    with watching(tmp_path) as printed:
        text = ""
        while text.count("Pipelines at") < 2:
            text += printed.readline()
    assert "\x1b" not in text
    assert text.count("│ prices") == 1
    assert text.count("prices: InvalidConnection: ") == 1


def test_json_is_a_line_for_each_update_on_a_terminal_too(tmp_path: Path) -> None:
    a_spec(tmp_path, "prices", "t", "kafka_none")
    for terminal in (False, True):
        with watching(tmp_path, "--json", terminal=terminal) as printed:
            first, second = (json.loads(printed.readline()) for _ in range(2))
        assert first["time"] < second["time"]
        for look in (first, second):
            (record,) = look["pipelines"]
            assert (record["pipeline"], record["state"]) == ("prices", "InvalidConnection")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--watch", "--record"], "--watch cannot be combined"),
        (["--watch", "--exit-code"], "--watch cannot be combined"),
        (["--watch", "--wide"], "--watch cannot be combined"),
        (["--interval", "5"], "--interval needs --watch"),
        (["--watch", "--interval", "0"], "greater than or equal to 1"),
    ],
)
def test_options_without_meaning_are_refused(
    offline: Command, arguments: list[str], message: str
) -> None:
    ran = offline("status", *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert message in ran.err


@pytest.mark.broker
def test_the_lag_of_new_records_shows_as_a_trend(
    broker: BrokerStatus,
    admin: AdminClient,
    tmp_path: Path,
    tidemark: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = f"tide-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic)
    a_spec(tmp_path, "prices", topic, "kafka_default")
    variable = connection_variable("kafka_default")
    monkeypatch.setenv(variable, kafka_connection(broker.bootstrap))
    assert tidemark("plan", "prices").code == ExitCode.OK
    with watching(tmp_path, "prices", "--json") as printed:
        (first,) = json.loads(printed.readline())["pipelines"]
        produce_records(broker.bootstrap, topic, [Record(), Record(), Record()])
        last = first
        while last["lag"] == 0:
            (last,) = json.loads(printed.readline())["pipelines"]
    assert (first["lag"], first["lag_per_minute"]) == (0, None)
    assert last["lag"] == 3
    assert last["lag_per_minute"] > 0
    assert last["read_error"] is None

"""`tidemark coverage`: bars, colours and zoom; a real topic, real tables and JSON."""

from __future__ import annotations

import io
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from rich.console import Console

from tests.support.commands import Command
from tests.support.file_lake import home_lake
from tests.support.kafka_file_lake import KafkaFileLake
from tests.support.memory_consoles import memory_app
from tests.support.plans import make_spec
from tests.support.topics import delete_records, make_topic
from tests.support.transactions import Record, produce_aborted, produce_values
from tests.support.typed_lake import TypedLake
from tidemark.app.connections import connection_variable
from tidemark.cli.output import _PLAIN
from tidemark.core.errors import ExitCode
from tidemark.core.offsets import Span, SpanSet
from tidemark.local.broker import BrokerStatus
from tidemark.ops.report.coverage import OffsetState, PartitionCoverage, PlanSpan, TopicCoverage
from tidemark.spec.model import StartPolicy

# -- text ----------------------------------------------------------------------------------------


def partition(number: int = 0, /, **states: tuple[int, int]) -> PartitionCoverage:
    """Return a partition with one span for each state, named as in `OffsetState`."""
    return PartitionCoverage(
        partition=number,
        low_watermark=0,
        end=max((end for _, end in states.values()), default=0),
        committed_offset=0,
        states={
            state: SpanSet((Span(*states[state.name]),))
            for state in OffsetState
            if state.name in states
        },
    )


@dataclass
class Screen:
    """A terminal of 80 columns that shows given partitions."""

    command: Command
    monkeypatch: pytest.MonkeyPatch

    def show(self, *partitions: PartitionCoverage, options: tuple[str, ...] = ()) -> str:
        """Return what the command prints, with its escape sequences."""
        screen = Console(file=io.StringIO(), force_terminal=True, width=80, **_PLAIN)
        for module in ("coverage", "output"):
            self.monkeypatch.setattr(f"tidemark.cli.{module}.out", screen)
        self.monkeypatch.setattr(
            "tidemark.ops.report.coverage_rows.CoverageReader.read",
            lambda *_: TopicCoverage(partitions=partitions),
        )
        assert self.command("coverage", "tides", *options).code == ExitCode.OK
        assert isinstance(screen.file, io.StringIO)
        return screen.file.getvalue()


@pytest.fixture
def screen(tmp_path: Path, offline: Command, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Return a terminal; pipeline `tides` exists."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    write_spec(tmp_path, "tides")
    return Screen(offline, monkeypatch)


def write_spec(home: Path, topic: str, *lines: str) -> None:
    """Write the spec of pipeline `tides`, which reads a topic from its first offset."""
    (home / "pipelines").mkdir()
    text = ["name: tides", f"topic: {topic}", 'schedule: "@daily"', "start: earliest", *lines]
    (home / "pipelines" / "tides.yaml").write_text("\n".join([*text, ""]), encoding="utf-8")


def plain(text: str) -> list[str]:
    """Return the lines of a text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def test_the_bar_of_one_partition_has_a_ruler_and_totals(screen: Screen) -> None:
    one = partition(LOST=(0, 1), LANDED=(1, 10**9))
    lines = plain(screen.show(one))
    assert lines == [
        f"    0 X{'#' * 73}",
        f"      |{' ' * 36}|{' ' * 35}|",
        f"      0{' ' * 36}500,000,000{' ' * 13}1,000,000,000",
        f"      X lost {'1':>32}",
        f"      # landed {'999,999,999':>30}",
    ]


def test_quarantined_offsets_have_a_line_that_shows_their_density(screen: Screen) -> None:
    """Landed offsets stay visible in the bar."""
    one = partition(LANDED=(0, 7_400)).with_quarantined(
        SpanSet((Span(0, 3_700), Span(3_700, 3_702), Span(7_300, 7_320)))
    )
    lines = plain(screen.show(one))
    assert lines[:2] == [f"    0 {'#' * 74}", f"      {'█' * 37}▄{' ' * 35}▆"]
    assert [line.split() for line in lines[-3:-1]] == [
        ["█", "quarantined", "3,722"],
        ["#", "landed", "3,678"],
    ]
    assert (
        lines[-1].strip()
        == "quarantined offsets in %: ▁ <0.1 ▂ <0.3 ▃ <1 ▄ <3 ▅ <10 ▆ <30 ▇ <100 █ 100"
    )
    assert max(map(len, lines)) <= 80
    assert "\x1b[1;33m█" in screen.show(one)


def test_colours_are_used_in_a_terminal_unless_no_color_is_set(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = partition(LOST=(0, 1), LANDED=(1, 1_000))
    coloured = screen.show(one)
    assert "\x1b[1;31mX" in coloured
    assert "\x1b[32m#" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain_text = screen.show(one)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain_text)
    assert plain(plain_text) == plain(coloured)


def test_the_partitions_with_the_most_severe_states_have_bars(screen: Screen) -> None:
    some = [partition(number, LANDED=(0, 10**12)) for number in range(500)]
    some[321] = partition(321, UNREAD=(5, 6), LANDED=(6, 10**12))
    some[432] = partition(432, LOST=(5, 6), LANDED=(6, 10**12))
    some[499] = partition(499)
    lines = plain(screen.show(*some))
    assert [line.split()[0] for line in lines[:4]] == ["432", "321", "0", "1"]
    assert lines[0].endswith("5 to 1,000,000,000,000")
    assert lines[40] == "460 more partitions, by most severe state: 459 landed, 1 without offsets"
    assert [line.split()[1] for line in lines[41:]] == ["lost", "unread", "landed"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("end", [1, 9, 10, 19, 20, 45, 74, 10**6, 2**63 - 1])
def test_every_window_fits_into_80_columns(screen: Screen, end: int) -> None:
    lines = plain(screen.show(partition(LANDED=(0, end)), options=("--partition", "0")))
    assert max(map(len, lines)) <= 80
    assert f"{end:,}" in " ".join(lines[:3])


def test_every_state_has_its_own_sign(screen: Screen) -> None:
    states = {state.name: (number, number + 1) for number, state in enumerate(OffsetState)}
    lines = plain(screen.show(partition(**states)))
    signs = [line.strip()[0] for line in lines[2:-1]]
    assert len({*signs}) == len(OffsetState)
    # A quarantined offset is a landed one in the bar.
    bar = ["#" if sign == "█" else sign for sign in signs]
    assert (lines[0].split()[1], lines[1].strip()) == ("".join(bar), "█")


def test_rows_that_were_not_read_are_noted(
    screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    one = partition(LANDED=(0, 9))
    options = ("--partition", "0")
    screen.show(one, options=options)
    result = screen.command("coverage", "tides", *options)
    assert "rows not read" in result.err
    assert screen.command("coverage", "tides", "--start", "5", "--end", "5").code == ExitCode.USAGE


def test_bars_without_read_rows_warn_that_landed_offsets_may_be_gaps(screen: Screen) -> None:
    screen.show(partition(LANDED=(0, 9)))
    shown = screen.command("coverage", "tides")
    assert "landed offsets may be gaps or missing" in shown.err
    screen.show(partition(UNREAD=(0, 9)))
    assert "rows not read" not in screen.command("coverage", "tides").err


def test_the_table_of_spans_has_their_plans(screen: Screen) -> None:
    plans = [PlanSpan(number, Span(number, number + 1)) for number in range(9)]
    one = PartitionCoverage(
        partition=0,
        low_watermark=0,
        end=9,
        committed_offset=0,
        states={
            OffsetState.MISSING: SpanSet((Span(1, 2),)),
            OffsetState.GAP: SpanSet((Span(2, 4),)),
            OffsetState.LANDED: SpanSet((Span(0, 1), Span(4, 9))),
        },
        read=Span(0, 9),
        plans=plans,
    )
    assert cells(plain(screen.show(one, options=("--partition", "0"))))[-4:] == [
        ["0", "1", "1", "landed", "0"],
        ["1", "2", "1", "missing", "1"],
        ["2", "4", "2", "gap", "2, 3"],
        ["4", "9", "5", "landed", "4 to 8"],
    ]


def cells(lines: list[str]) -> list[list[str]]:
    """Return the cells of each row of a table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]


# -- without Kafka -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_offsets_of_the_tables_are_shown_while_kafka_is_away(
    tmp_path: Path, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends with the code of Kafka's error."""
    lake = home_lake(tmp_path)
    lake.plan(2)
    read = offline("coverage", "events", "--json")
    assert read.code == ExitCode.TRANSIENT
    first, second = read.json["partitions"]
    assert first["states"] == {"in an open plan": [[9, 11]], "landed": [[0, 9]]}
    assert (first["low_watermark"], first["end"], first["committed_offset"]) == (None, None, 9)
    assert (second["states"], second["committed_offset"]) == ({}, 0)
    assert read.json["kafka_error"]["error"] == "KafkaUnavailable"

    monkeypatch.delenv(connection_variable("kafka_default"))
    shown = offline("coverage", "events", "--partition", "0")
    assert shown.code == ExitCode.REFUSED
    assert "    0 ##" in shown.out
    assert ["9", "11", "2", "in an open plan", "4"] in cells(shown.out.splitlines())
    assert "the start and the end of the log are unknown" in shown.err
    assert "EmbeddedBrokerStopped" in shown.err
    absent = offline("coverage", "events", "--partition", "7")
    assert (absent.code, absent.out) == (ExitCode.REFUSED, "")


# -- with a data table that differs from the control table ----------------------------------------


def test_a_table_that_differs_is_an_error_beside_the_states(
    tmp_path: Path, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RESTORE removed landed rows. The control table still has their plan as landed."""
    lake = home_lake(tmp_path)
    load = memory_app(tmp_path, lake)
    monkeypatch.setattr("tidemark.cli.coverage.App.from_environment", load)
    read = offline("coverage", "events", "--json")
    assert (read.code, read.json["table_error"]) == (ExitCode.OK, None)
    DeltaTable(lake.uri).restore(1)
    for options in ((), ("--partition", "0")):
        shown = offline("coverage", "events", *options)
        assert shown.code == ExitCode.REFUSED
        assert "the data table does not confirm them" in shown.err
        assert "TableBehindLedger" in shown.err
    read = offline("coverage", "events", "--json")
    assert read.code == ExitCode.REFUSED
    assert read.json["table_error"]["error"] == "TableBehindLedger"
    assert read.json["partitions"][0]["states"] == {"landed": [[0, 9]]}
    shutil.rmtree(lake.uri)
    assert "TableBehindLedger" in offline("coverage", "events").err


# -- a real topic --------------------------------------------------------------------------------


@pytest.mark.broker
def test_bars_and_spans_show_landed_planned_lost_and_unread_offsets(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    topic = f"cover-{uuid.uuid4().hex[:6]}"
    make_topic(admin, broker.bootstrap, topic, partitions=2)
    write_spec(tmp_path, topic)
    assert tidemark("plan", "tides").code == ExitCode.OK
    produce_values(broker.bootstrap, topic, 6)
    delete_records(admin, topic, before=2)

    first, second = tidemark("coverage", "tides", "--json").json["partitions"]
    assert first["states"] == {"lost": [[0, 2]], "unread": [[2, 6]]}
    assert (first["low_watermark"], first["end"], first["committed_offset"]) == (2, 6, 0)
    assert (second["states"], second["read"], second["plans"]) == ({}, None, [])

    assert tidemark("accept-loss", "tides", "--reason", "test").code == ExitCode.OK
    assert tidemark("plan", "tides").code == ExitCode.OK
    produce_values(broker.bootstrap, topic, 2)
    assert tidemark("coverage", "tides").out.splitlines() == [
        "    0 XXoooo.. 0 to 8",
        "    1 no offsets",
        f"      X lost {'2':>32}",
        f"      . unread {'2':>30}",
        f"      o in an open plan {'4':>21}",
    ]
    zoomed = tidemark("coverage", "tides", "--partition", "0", "--start", "1", "--end", "4").out
    assert "    0 Xoo 1 to 4" in zoomed
    rows = cells(zoomed.splitlines())
    assert ["1", "2", "1", "lost", "-"] in rows
    assert ["2", "4", "2", "in an open plan", "1"] in rows
    assert tidemark("coverage", "tides", "--partition", "7").code == ExitCode.REFUSED


@pytest.mark.broker
def test_every_state_of_a_real_topic_is_found_in_real_tables(
    broker: BrokerStatus, admin: AdminClient, tmp_path: Path, tidemark: Command
) -> None:
    topic, bootstrap = f"cover-{uuid.uuid4().hex[:6]}", broker.bootstrap
    make_topic(admin, bootstrap, topic, partitions=2)
    write_spec(
        tmp_path,
        topic,
        "target: bronze/events",
        "decode: {publish: always, value: {format: string}, target: silver/events}",
    )
    text = (tmp_path / "pipelines" / "tides.yaml").read_text().replace("tides", "events")
    (tmp_path / "pipelines" / "events.yaml").write_text(text)
    (tmp_path / "pipelines" / "tides.yaml").unlink()
    typed = TypedLake(tmp_path / "lakehouse")
    spec = make_spec(topic=topic, start=StartPolicy.LATEST)
    typed.bronze = lake = KafkaFileLake(tmp_path / "lakehouse", spec, bootstrap=bootstrap)

    produce_values(bootstrap, topic, 4)
    lake.planner.plan("before the start")
    delete_records(admin, topic, before=2)
    lake.run(4)  # offsets 4 to 7
    produce_aborted(bootstrap, topic, [Record(), Record()])  # 8, 9, and the marker 10
    lake.run(1)
    typed.broken = {6}
    typed.run()
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 5")
    produce_values(bootstrap, topic, 3, partition=1)
    delete_records(admin, topic, before=1, partition=1)
    lake.decisions.accept_loss((), "ada", "test")
    lake.planner.plan("open")
    produce_values(bootstrap, topic, 1, partition=1)

    (found,) = tidemark("coverage", "events", "--partition", "0", "--json").json["partitions"]
    assert found["states"] == {
        "missing": [[5, 6]],
        "quarantined": [[6, 7]],
        "expired": [[0, 2]],
        "before the start": [[2, 4]],
        "gap": [[8, 11]],
        "landed": [[4, 5], [7, 8], [11, 12]],
    }
    assert found["plans"] == [[1, 4, 8], [2, 8, 12]]
    other: dict[str, Any] = tidemark("coverage", "events", "--json").json["partitions"][1]
    assert other["states"] == {
        "lost": [[0, 1]],
        "unread": [[3, 4]],
        "in an open plan": [[1, 3]],
    }
    bars = tidemark("coverage", "events").out.splitlines()
    assert bars[:3] == ["    0 --######## 2 to 12", "          █", "    1 Xoo. 0 to 4"]
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 11")
    (found,) = tidemark("coverage", "events", "--partition", "0", "--json").json["partitions"]
    assert found["states"]["gap or missing"] == [[8, 12]]

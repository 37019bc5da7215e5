"""Commands on real tables with landed plans, without Kafka and Spark."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.commands import Command
from tests.support.plans import MemoryPipeline, make_spec
from tests.support.registry import framed
from tests.support.services import NOW
from tests.support.typed_job import NoRows
from tests.support.typed_lake import TypedLake, home_typed_lake
from tidemark.app.app import App
from tidemark.cli import output
from tidemark.core.errors import ExitCode
from tidemark.core.watermarks import IsolationLevel
from tidemark.delta.table_io import query_rows
from tidemark.silver.typed.schema_table import DeltaSchemaStore
from tidemark.spark.submit import RESULT_MARKER
from tidemark.spec.decode import DEFAULT_REGISTRY, RegisteredSchema

_STEP = {"step": "decode", "plan": 1, "records": 1, "quarantined": 0, "seconds": 0.1}


def test_earlier_plans_are_checked_and_decoded_after_a_refused_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unconnected: Command
) -> None:
    """The exit code and the error are those of the refusal."""
    home_typed_lake(tmp_path).land_values([b"a"])
    results = json.dumps([{"pipeline": "events", "plan": 1, "steps": [_STEP]}])
    program = tmp_path / "spark-submit"
    program.write_text(f"#!/bin/sh\necho \"$@\"\necho '{RESULT_MARKER}{results}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    done = unconnected("run", "events", "--master", "local", "--json")
    assert done.code == ExitCode.REFUSED
    assert "--plan events=1" in done.err
    (record,) = done.json
    assert (record["error"], record["plan"]) == ("EmbeddedBrokerStopped", None)
    assert record["steps"] == [_STEP]
    shown = unconnected("run", "events", "--master", "local")
    assert shown.code == ExitCode.REFUSED
    assert "EmbeddedBrokerStopped" in shown.out
    assert "EmbeddedBrokerStopped" in shown.err


def test_decode_reports_offsets_that_wait_for_a_check(tmp_path: Path, unconnected: Command) -> None:
    """The command that it prints checks the oldest plan; JSON contains the numbers."""
    lake = home_typed_lake(tmp_path)
    spec = tmp_path / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text().replace("publish: always, ", ""))
    lake.land_values([b"a", b"b"])
    shown = unconnected("decode", "events", "--master", "local").out
    check = "tidemark check events --plan 1"
    assert shown == f"events waits for the check of plan 1: 2 landed offsets: {check}\n"
    lake.land_values([b"c"])
    shown = unconnected("decode", "events", "--master", "local").out
    assert shown == (
        f"events waits for the check of plans 1, 2: 3 landed offsets: {check}, "
        "or tidemark run events for all 2 plans\n"
    )
    publication = App.from_environment().pipeline("events").publication
    publication.reject(1, "ada", "wrong values")
    (record,) = unconnected("decode", "events", "--master", "local", "--json").json
    assert (record["outcome"], record["unchecked"], record["refused"]) == ("nothing to do", 1, 2)
    assert record["unchecked_plans"] == [2]


def test_quarantined_payloads_are_shown_decoded_with_a_stored_schema(
    tmp_path: Path, unconnected: Command
) -> None:
    """Text is shown as text. The registry does not answer for the schema that is not stored."""
    lake = home_typed_lake(tmp_path)
    lake.broken = {0, 1, 2}
    lake.land_values([framed(3, b'{"n": 1}'), b"text", framed(4, b"{}")])
    lake.run()
    schema = RegisteredSchema(
        id=3, kind="JSON", text='{"type": "object", "properties": {"n": {"type": "integer"}}}'
    )
    layout = App.from_environment().layout
    DeltaSchemaStore(layout.schema_table, DEFAULT_REGISTRY, lambda: NOW).store([schema])
    shown = unconnected("quarantine", "list", "events", "--show")
    assert '  value     JSON of schema 3, 13 bytes:\n    {\n      "n": 1\n    }\n' in shown.out
    assert "  value     UTF-8, 4 bytes: text\n" in shown.out
    assert "  value     UTF-8, 7 bytes: \\u{0000}" in shown.out
    assert "not decoded: " in shown.err
    # A damaged table of schemas hides no content.
    for commit in Path(layout.schema_table).glob("_delta_log/*.json"):
        commit.write_text("damaged")
    shown = unconnected("quarantine", "list", "events", "--show")
    assert (shown.code, shown.out.count("  value     UTF-8, ")) == (ExitCode.OK, 3)
    assert "not decoded: " in shown.err


@pytest.mark.parametrize("command", ["undo", "publication reject"])
def test_a_withdrawn_plan_has_the_commands_that_remove_its_rows_from_other_tables(
    tmp_path: Path, unconnected: Command, command: str
) -> None:
    """The dry runs of these commands agree on the rows."""
    lake = home_typed_lake(tmp_path, "value: {format: string}, upsert: {}")
    spec = tmp_path / "pipelines" / "events.yaml"
    lake.land_values([b"a", b"b"])
    lake.run()
    spec.write_text(spec.read_text().replace("publish: always, ", ""))
    pipeline = App.from_environment().pipeline("events")
    pipeline.upsert.planner.execute(NoRows(tmp_path / "lakehouse" / "silver" / "events_latest"))
    pipeline.publication.release(1, "ada", "checked by hand")
    upsert = unconnected("upsert", "events", "--dry-run")
    assert upsert.out == "events: nothing to do\n"
    allow = ["--allow-loss"] if command == "undo" else []
    withdraw = [*command.split(), "events", "--plan", "1", "--reason", "wrong values", *allow]
    commands = ["tidemark decode events", "tidemark upsert events"]
    assert unconnected(*withdraw, "--dry-run", "--json").json["next"] == commands
    shown = unconnected(*withdraw)
    assert f"next, to update the decoded tables: {', then '.join(commands)}\n" in shown.out
    backlog = unconnected("decode", "events", "--dry-run", "--json").json
    assert [each["surplus"] for each in backlog] == [2]
    upsert = unconnected("upsert", "events", "--dry-run")
    assert upsert.out == (
        "events: nothing to do; first tidemark decode events: 2 offsets to remove\n"
    )
    (found,) = unconnected("upsert", "events", "--dry-run", "--json").json
    assert (found["to_decode"], found["to_remove"]) == (0, 2)
    decoded = unconnected("decode", "events")
    done = "events: 0 records decoded, 0 quarantined, 2 offsets removed"
    assert done in decoded.out
    assert unconnected(*withdraw, "--json").json["next"] == []


@pytest.mark.parametrize(
    "command",
    [
        ("report", "events", "--json"),
        ("publication", "list", "events", "--json"),
        ("suite", "init", "events", "--dry-run"),
        ("schema", "init", "events"),
    ],
    ids=" ".join,
)
def test_a_table_with_a_constraint_can_be_read(
    tmp_path: Path, unconnected: Command, command: tuple[str, ...]
) -> None:
    """The constraint only prevents landings."""
    lake = home_typed_lake(tmp_path)
    lake.land_values([b'{"a": 1}'])
    DeltaTable(lake.bronze.uri).alter.add_constraint({"early": '"offset" < 1000'})
    ran = unconnected(*command)
    assert "TableAltered" not in ran.out + ran.err
    assert ran.code == ExitCode.OK


def test_a_verification_names_the_plans_of_another_level_than_the_present_one(
    tmp_path: Path, unconnected: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may contain records that the spec excludes now."""
    home_typed_lake(tmp_path)
    pipeline = MemoryPipeline(spec=make_spec(isolation_level=IsolationLevel.READ_UNCOMMITTED))
    pipeline.produce(0, 3)
    pipeline.run("first")
    pipeline.spec = replace(pipeline.spec, isolation_level=IsolationLevel.READ_COMMITTED)
    found = pipeline.verify.verify()
    monkeypatch.setattr("tidemark.ops.report.verify.Verifier.verify", lambda *_: found)
    shown = unconnected("verify", "events")
    assert (
        "3 offsets of plan 1 compared at read_uncommitted, at which they landed: the rows may "
        "contain records of aborted transactions; the spec has read_committed now\n"
        "equal: every visible record (read_uncommitted)"
    ) in shown.out


@pytest.fixture
def decoded(tmp_path: Path) -> TypedLake:
    """Return a lake with two decoded records."""
    lake = home_typed_lake(tmp_path)
    lake.land_values([b"a", b"b"])
    lake.run()
    return lake


@pytest.fixture
def equal_to_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each bronze table equal its topic, which these tests lack."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("first")
    found = pipeline.verify.verify()
    monkeypatch.setattr("tidemark.ops.report.verify.Verifier.verify", lambda *_: found)


@pytest.mark.usefixtures("decoded", "equal_to_kafka")
def test_a_verification_compares_the_typed_table_as_well(unconnected: Command) -> None:
    shown = unconnected("verify", "events")
    assert shown.code == ExitCode.OK
    assert "events@typed: rows of the data table, decoded again" in shown.out
    assert (
        "equal: every decoded row is in the typed table once, with the values of its record, or in "
        "the quarantine once\nnot compared: whether typed rows pass the row rules of the spec; "
    ) in shown.out
    found = unconnected("verify", "events", "--json").json
    assert (found["equal"], found["typed"]["equal"]) == (True, True)
    refused = unconnected("verify", "events@typed")
    assert "InvalidReference" in refused.err


@pytest.mark.usefixtures("equal_to_kafka")
def test_a_changed_typed_table_is_repaired_as_its_error_advises(
    decoded: TypedLake, unconnected: Command
) -> None:
    """The error names the column, and no value."""
    DeltaTable(decoded.typed_uri).update({"value": "'changed'"}, predicate='"offset" = 1')
    found = unconnected("verify", "events", "--json")
    assert found.code == ExitCode.REFUSED
    assert (found.json["equal"], found.json["typed"]["differences"]) == (False, {"altered": 1})
    refused = unconnected("verify", "events")
    assert refused.code == ExitCode.REFUSED
    error = " ".join(refused.err.split())
    assert "TableDiffers: The typed table of pipeline 'events'" in error
    assert "First: altered topic events partition 0 offset 1 value (plan 1)." in error
    assert "changed" not in refused.out + refused.err
    assert "tidemark decode events --from-scratch --reason TEXT" in error
    App.from_environment().pipeline("events").typed.clear("ops", "a changed row")
    decoded.run()
    assert unconnected("verify", "events").code == ExitCode.OK


@pytest.mark.usefixtures("equal_to_kafka")
def test_a_verification_counts_rows_that_are_neither_equal_nor_a_difference(
    decoded: TypedLake, unconnected: Command
) -> None:
    decoded.land_values([b"c"])
    DeltaTable(decoded.bronze.uri).delete('"offset" = 0')
    shown = unconnected("verify", "events")
    assert shown.code == ExitCode.OK
    assert (
        "1 decoded row without a row in the data table: another program has deleted it" in shown.out
    )
    (typed,) = unconnected("verify", "events", "--json").json["typed"]["partitions"]
    assert (typed["rows"], typed["typed"], typed["undecoded"], typed["deleted"]) == (2, 1, 1, 1)


def test_records_are_shown_without_kafka_and_cannot_change_the_terminal(
    tmp_path: Path, unconnected: Command
) -> None:
    """The exit code is that of the part that failed."""
    lake = home_typed_lake(tmp_path)
    lake.land_values(["\x1b[2J\r0  landed\u2028\u202e".encode()], headers=(("\x1bh", b"\x9b"),))
    lake.run()
    shown = unconnected("records", "events", "--partition", "0", "--offset", "0", "--count", "2")
    assert shown.code == ExitCode.REFUSED
    assert "events: Kafka: EmbeddedBrokerStopped" in shown.err
    first, *others = shown.out.splitlines()
    assert first == "events: topic events, id id-1, partition 0"
    assert others[0].endswith("landed in plan 1; Kafka: unknown")
    assert "\\u{001B}[2J\\u{000D}0  landed\\u{2028}\\u{202E}" in others[2]
    assert others[3] == '  header "\\\\u{001B}h" hex, 1 byte: 9b'
    assert "  typed     decoded in plan 1" in others
    unknown = "1  no row: unknown; Kafka: unknown."
    assert others[-1].startswith(unknown)
    assert all(each.isprintable() for each in (first, *others))


def cells(printed: str) -> list[list[str]]:
    """Return the cells of each line of printed tables."""
    return [[cell.strip() for cell in line.split("│")][1:-1] for line in printed.splitlines()]


def test_status_shows_quarantine_and_check_of_real_tables(
    tmp_path: Path, unconnected: Command
) -> None:
    """JSON and the status table have the same values."""
    lake = home_typed_lake(tmp_path)
    lake.broken = (1, 2)
    lake.land_values([b"a", b"b", b"c"])
    lake.run()
    shown = unconnected("status", "events")
    row = ["events", "-", "-", "-", "2", "EmbeddedBrokerStopped"]
    assert row in cells(shown.out)
    assert shown.code == ExitCode.REFUSED
    assert ["0", "3", "-", "-", "-", "-"] in cells(shown.out)
    assert "events: 2 records in quarantine" in shown.out
    (record,) = unconnected("status", "events", "--record", "--json").json
    assert (record["typed_rows"], record["quarantined"]) == (1, 2)
    assert record["last_check"] == "not checked"
    rows = query_rows(DeltaTable(App.from_environment().layout.status_table), "SELECT * FROM t")
    assert [(each["quarantined"], each["last_check"]) for each in rows] == [(2, "not checked")]
    publication = App.from_environment().pipeline("events").publication
    publication.reject(1, "ada", "wrong values")
    wide = unconnected("status", "events", "--wide").out
    assert ["3", "1", "rejected", "-", "2"] in [line[6:8] + line[9:12] for line in cells(wide)]


def test_a_status_fits_into_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unconnected: Command
) -> None:
    """A long name folds; the line of a pipeline with short values is whole."""
    home_typed_lake(tmp_path)
    folder = tmp_path / "pipelines"
    text = (folder / "events.yaml").read_text()
    name = f"{'long_name_' * 5}end"
    (folder / f"{name}.yaml").write_text(text.replace("name: events", f"name: {name}"))
    monkeypatch.setattr(output.out, "width", 80)
    for options in ((), ("events", name)):
        lines = unconnected("status", *options).out.splitlines()
        assert max(map(len, lines)) <= 80
        assert name in "".join(line[:24].strip() for line in lines)

"""`tidemark sql` over real tables, without Spark and Kafka."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.fixtures_stores import PlaceIn
from tests.support.commands import Command
from tests.support.file_lake import FileLake, home_lake
from tests.support.interrupts import processes_with_sigint
from tests.support.publication import record_decision
from tests.support.stores import Store
from tests.support.waiting import wait_until
from tidemark.core.errors import ExitCode
from tidemark.core.publication import PublicationStatus


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return pipeline `events` with three plans of three records."""
    return home_lake(tmp_path)


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("name", ["bronze.events", "events", '"bronze.events"', "BRONZE.Events"])
def test_a_table_is_found_by_its_folder_and_by_its_short_name(offline: Command, name: str) -> None:
    shown = offline("sql", f'SELECT max("offset") AS last FROM {name}', "--json")
    assert (shown.code, shown.json) == (ExitCode.OK, [{"last": 8}])


@pytest.mark.store
def test_tables_in_an_object_store_are_read(
    lake: FileLake,
    offline: Command,
    conditional_store: Store,
    place_in: PlaceIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lakehouse = place_in(conditional_store)
    monkeypatch.setenv("TIDEMARK_LAKEHOUSE", lakehouse)
    write_deltalake(f"{lakehouse}/bronze/events", DeltaTable(lake.uri).scan())
    query = 'SELECT max("offset") AS last, count(*) AS n FROM bronze.events WHERE plan_sequence > 1'
    shown = offline("sql", query, "--json")
    assert (shown.code, shown.json) == (ExitCode.OK, [{"last": 8, "n": 6}])


@pytest.mark.usefixtures("lake")
def test_a_join_reads_a_table_twice_with_different_columns_and_filters(offline: Command) -> None:
    query = (
        'SELECT a."offset", decode(b.value) AS value FROM events a JOIN events b USING ("offset") '
        "WHERE a.plan_sequence = 2 AND a.topic = 'events' AND b.timestamp IS NOT NULL ORDER BY ALL"
    )
    expected = [{"offset": n, "value": str(n)} for n in (3, 4, 5)]
    assert offline("sql", query, "--json").json == expected


def test_a_restored_table_has_the_rows_of_the_restored_version(
    lake: FileLake, offline: Command
) -> None:
    DeltaTable(lake.uri).restore(2)
    assert offline("sql", "SELECT count(*) AS n FROM events", "--json").json == [{"n": 6}]


def test_the_published_view_has_the_rows_of_published_plans(
    lake: FileLake, offline: Command
) -> None:
    record_decision(lake.control, "events", 1)
    record_decision(lake.control, "events", 2, PublicationStatus.BLOCKED)
    query = "SELECT DISTINCT plan_sequence AS plan FROM published.events"
    assert offline("sql", query, "--json").json == [{"plan": 1}]


def test_bytes_are_text_or_hexadecimal_and_control_characters_are_visible(
    lake: FileLake, offline: Command
) -> None:
    lake.land_payloads([(b"\xff\x00", b"\x1b[31mred")], 1)
    query = "SELECT key, value FROM events WHERE partition = 1"
    shown = offline("sql", query).out
    assert "ff 00" in shown
    assert "\\u{001B}[31mred" in shown
    assert offline("sql", query, "--json").json == [{"key": "ff 00", "value": "\x1b[31mred"}]
    assert offline("sql", query, "--csv").out == "key,value\nff 00,\x1b[31mred\n"


@pytest.mark.usefixtures("lake")
def test_a_limit_reports_the_number_of_further_rows(offline: Command) -> None:
    shown = offline("sql", "SELECT * FROM events", "--limit", "2")
    assert "7 further rows" in shown.err
    assert len(offline("sql", "SELECT * FROM events", "--json").json) == 9


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_statements_on_standard_input_return_the_rows_of_the_last_one(
    offline: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    text = "CREATE TEMP VIEW two AS SELECT 2 AS n; SELECT n, n FROM two; -- the end"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert offline("sql", *arguments, "--json").json == [{"n": 2, "n_1": 2}]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("INSERT INTO events SELECT * FROM events", "InvalidQuery"),
        ("DELETE FROM bronze.events", "InvalidQuery"),
        ("UPDATE bronze.events SET value = NULL", "InvalidQuery"),
        ("COPY events TO '{folder}/out.csv'", "InvalidQuery"),
        ("COPY (SELECT 1) TO '{folder}/out.parquet'", "InvalidQuery"),
        ("EXPORT DATABASE '{folder}/out'", "InvalidQuery"),
        ("ATTACH '{folder}/other.db'", "InvalidQuery"),
        ("INSTALL delta", "InvalidQuery"),
        ("LOAD parquet_extension_of_a_user", "InvalidQuery"),
        ("SET enable_external_access = true", "InvalidQuery"),
        ("RESET enable_external_access", "InvalidQuery"),
        ("SET python_enable_replacements = true", "InvalidQuery"),
        ("SELECT * FROM read_text('/etc/hosts')", "InvalidQuery"),
        ("SELECT * FROM '/etc/hosts'", "InvalidQuery"),
        ("SELECT nothing FROM events", "InvalidQuery"),
        ("SELEC 1", "InvalidQuery"),
        ("", "InvalidQuery"),
    ],
)
def test_writes_and_other_files_are_refused(
    lake: FileLake, offline: Command, tmp_path: Path, query: str, error: str
) -> None:
    """DuckDB's locked settings refuse files and extensions, and views cannot be written."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    version = DeltaTable(lake.uri).version()
    ran = offline("sql", query.format(folder=folder), "--json")
    assert (ran.code, json.loads(ran.out)["error"]) == (ExitCode.REFUSED, error)
    assert list(folder.iterdir()) == []
    assert DeltaTable(lake.uri).version() == version


def test_tables_are_listed_without_being_opened(lake: FileLake, offline: Command) -> None:
    shutil.rmtree(lake.uri / "_delta_log")
    listed = {each["table"]: each for each in offline("sql", "--tables", "--json").json}
    assert listed["bronze.events"]["short_name"] == "events"
    assert listed["bronze.events"]["location"] == str(lake.uri)
    assert listed["published.events"]["short_name"] is None
    assert "bronze.events" in offline("sql", "--tables").out


@pytest.mark.usefixtures("lake")
def test_an_unknown_table_is_reported_with_similar_names(offline: Command) -> None:
    ran = offline("sql", "SELECT * FROM bronze.evnts", "--json")
    assert ran.json["problem"].startswith("The table name bronze.evnts cannot be resolved")
    assert "bronze.events" in ran.json["fix"]
    assert "bronze.idle has no rows yet" in offline("sql", "SELECT * FROM bronze.idle").err


def test_a_damaged_file_is_a_named_error(lake: FileLake, offline: Command) -> None:
    for file in lake.uri.rglob("*.parquet"):
        file.write_bytes(b"PAR1")
    assert offline("sql", "SELECT * FROM events", "--json").json["error"] == "UnreadableFile"


def test_a_foreign_table_is_readable_and_has_no_published_view(
    lake: FileLake, offline: Command
) -> None:
    record_decision(lake.control, "events", 1)
    shutil.rmtree(lake.uri)
    write_deltalake(lake.uri, pa.table({"price": [1.0, 2.0]}))
    shown = offline("sql", "SELECT count(*) AS n FROM bronze.events", "--json")
    assert (shown.code, shown.json) == (ExitCode.OK, [{"n": 2}])
    refused = offline("sql", "SELECT * FROM published.events", "--json")
    assert refused.json["error"] == "ForeignTable"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_running_query(number: signal.Signals, tmp_path: Path) -> None:
    """DuckDB itself handles a signal only while its other threads are idle."""
    endless = "SELECT count(*) FROM range(1_000_000_000_000) AS a(x) WHERE hash(x) % 7 = 3"
    with processes_with_sigint():
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "tidemark"), "sql", endless],
            env={**os.environ, "TIDEMARK_HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_running() -> bool:
        threads = psutil.Process(process.pid).threads()
        return any(each.user_time > 0.2 for each in threads if each.id != process.pid)

    with process:
        try:
            wait_until(is_running, what="a thread of DuckDB computes")
            process.send_signal(number)
            printed, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, printed, errors) == (128 + number, "", "")

"""Commands that cannot read or write a table end in a named error; no Spark, no Kafka."""

from __future__ import annotations

import json
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import TopicFactory
from tests.support.commands import Command, CommandResult
from tests.support.file_lake import FileLake, home_lake
from tests.support.quality_reports import REPORT
from tests.support.transactions import produce_values
from tidemark.app.app import App
from tidemark.app.run import main
from tidemark.bronze.backfill.selection import select
from tidemark.core.errors import ExitCode
from tidemark.delta.errors import StorageRefused
from tidemark.local.broker import BrokerStatus
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.spark.submit import RESULT_MARKER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def _without_room() -> Iterator[None]:
    """Let this process write no byte to a file, also as root and on any file system.

    pytest captures the log of the process in a file, too, so lost log lines are no errors here.
    """
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        monkeypatch.undo()


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events`: plans 1 to 3 have landed, 4 is open."""
    lake = home_lake(tmp_path)
    lake.plan(1)
    return lake


def _first_line(shown: CommandResult) -> str:
    """Return the first line of an error; a command that needs Spark prints its engine first."""
    return next(line for line in shown.err.splitlines() if not line.startswith("engine: "))


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "events"),
        ("ingest", "events"),
        pytest.param(
            ("undo", "events", "--plan", "1", "--reason", "test", "--allow-loss"),
            marks=pytest.mark.slow,
        ),
        ("abandon", "events", "--plan", "4", "--reason", "test"),
    ],
    ids=" ".join,
)
def test_a_command_that_cannot_write_names_the_cause_in_its_first_line(
    lake: FileLake, offline: Command, command: tuple[str, ...]
) -> None:
    """As text and as JSON, with a documented exit code; nothing is recorded."""
    before = lake.ledger
    with _without_room():
        shown, record = offline(*command), offline(*command, "--json")
    first = _first_line(shown)
    assert "StorageRefused: " in first
    assert str(lake.root) in first
    assert "File too large" in first
    assert "Traceback" not in shown.err
    assert shown.code == record.code == ExitCode.REFUSED
    (error,) = record.json if isinstance(record.json, list) else [record.json]
    assert error["error"] == "StorageRefused"
    assert "File too large" in error["problem"]
    assert lake.ledger == before


@pytest.mark.parametrize("place", ["control", "control/offset_ranges"])
def test_a_file_in_place_of_the_control_table_is_not_an_empty_ledger(
    lake: FileLake, offline: Command, place: str
) -> None:
    """With an empty ledger, the pipeline would start again and land every record twice."""
    (lake.root / place).rename(lake.root / "aside")
    (lake.root / place).touch()
    for command in (
        ("plan", "events"),
        ("ingest", "events"),
        ("undo", "events", "--plan", "1", "--reason", "test"),
        ("abandon", "events", "--plan", "4", "--reason", "test"),
        ("status", "events"),
    ):
        shown, record = offline(*command), offline(*command, "--json")
        first = _first_line(shown)
        assert "StorageRefused: " in first
        assert "Not a directory" in first
        assert shown.code == record.code == ExitCode.REFUSED
        (error,) = record.json if isinstance(record.json, list) else [record.json]
        assert error["error"] == "StorageRefused"


def test_a_decision_that_cannot_be_recorded_names_the_cause(
    lake: FileLake, offline: Command
) -> None:
    with _without_room():
        release = ("publication", "release", "events", "--plan", "1", "--reason", "test")
        shown, record = offline(*release), offline(*release, "--json")
    assert shown.err.startswith("StorageRefused: ")
    assert str(lake.control_uri) in shown.err.splitlines()[0]
    assert (record.code, record.json["error"]) == (ExitCode.REFUSED, "StorageRefused")


def _occupied(lake: FileLake) -> Path:
    """Put a file in place of the table of check results."""
    place = lake.root / "quality" / "results"
    place.parent.mkdir(exist_ok=True)
    place.touch()
    return place


def test_a_report_without_its_check_results_names_the_cause(
    lake: FileLake, offline: Command
) -> None:
    """A file in place of a table is neither an empty history nor a traceback."""
    place = _occupied(lake)
    report = ("report", "events", "--since", "2026-01-01")
    shown, record = offline(*report), offline(*report, "--json")
    first = _first_line(shown)
    problem = f"The storage refused using the table at {place}: Not a directory."
    assert first == f"StorageRefused: {problem}"
    assert shown.code == record.code == ExitCode.REFUSED
    assert record.json["error"] == "StorageRefused"


def test_check_results_that_cannot_be_written_name_the_cause(tmp_path: Path) -> None:
    """Covers a new table and a table with results."""
    results = DeltaCheckResults(str(tmp_path / "results"))
    report = replace(REPORT, pipeline="events")
    for _ in range(2):
        with _without_room(), pytest.raises(StorageRefused, match="File too large"):
            results.append(report)
        results.append(report)


def test_a_report_page_that_cannot_be_written_names_the_cause(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    """The folder of the page is no table."""
    (tmp_path / "full").touch()
    page = tmp_path / "full" / "page.html"
    for shown in (
        offline("report", "events", "--output", str(page)),
        offline("report", "events", "--output", str(tmp_path)),
    ):
        assert shown.err.startswith("StorageRefused: The storage refused writing the page at ")
        assert shown.code == ExitCode.REFUSED
    assert lake.rows()


def test_a_newer_spec_with_the_target_of_another_pipeline_is_refused(
    lake: FileLake, offline: Command, tmp_path: Path
) -> None:
    """Its file sorts first. The control table has the owner, which takes over its open plan."""
    spec = (tmp_path / "pipelines" / "events.yaml").read_text()
    (tmp_path / "pipelines" / "aaa.yaml").write_text(spec.replace("name: events", "name: aaa"))
    owner, newer = offline("plan", "events", "--json"), offline("plan", "aaa", "--json")
    assert (owner.json["outcome"], newer.json["error"]) == ("adopted", "SpecError")
    assert "aaa.yaml: target: found 'bronze/events', as in events.yaml" in newer.json["problem"]
    assert lake.rows() == [(0, offset) for offset in range(9)]


@pytest.mark.spark
@pytest.mark.usefixtures("offline")
def test_a_check_job_that_cannot_store_its_results_names_the_cause(
    lake: FileLake,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The check itself passes."""
    assert spark
    place = _occupied(lake)
    assert main("check", "", ["--plan=events=1"]) == ExitCode.REFUSED
    (error,) = json.loads(capsys.readouterr().out.split(RESULT_MARKER)[1])
    assert error["error"] == "StorageRefused"
    assert str(place) in error["problem"]
    assert "Not a directory" in error["problem"]


@pytest.mark.usefixtures("lake")
def test_maintenance_that_cannot_write_names_the_cause_for_each_table(offline: Command) -> None:
    """A missing table is no failure."""
    with _without_room():
        maintained = offline("maintain", "events", "--json")
    failed = {each["table"]: each for each in maintained.json["tables"] if "error" in each}
    assert failed.keys() == {"events", "control table"}
    assert {each["error"] for each in failed.values()} == {"StorageRefused"}
    assert all("File too large" in each["problem"] for each in failed.values())
    assert maintained.code == ExitCode.REFUSED


@pytest.mark.broker
def test_a_backfill_that_cannot_be_recorded_names_the_cause(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, tidemark: Command
) -> None:
    """Neither the request nor a chunk's plan is recorded; a dry run and the progress still work."""
    name = topic(partitions=1)
    produce_values(broker.bootstrap, name, 3)
    (tmp_path / "pipelines").mkdir()
    spec = f"name: events\ntopic: {name}\nschedule: '@daily'\nstart: latest\n"
    (tmp_path / "pipelines" / "events.yaml").write_text(spec)
    request = ("backfill", "events", "--offsets", "0:0-3")
    resumed = ("backfill", "events", "--resume", "test")

    def refused(*command: str) -> Any:
        with _without_room():
            shown, record = tidemark(*command), tidemark(*command, "--json")
        assert "StorageRefused: " in shown.err
        assert str(tmp_path / "lakehouse" / "control") in shown.err
        assert "Traceback" not in shown.err
        assert shown.code == record.code == ExitCode.REFUSED
        return record.json

    error = refused(*request)
    assert error["error"] == "StorageRefused"
    with _without_room():
        draft = tidemark(*request, "--dry-run", "--json")
    assert (draft.code, draft.json["offsets"]) == (ExitCode.OK, 3)

    backfills = App.from_environment().pipeline("events").backfills
    seen = backfills.preview(select(offsets=["0:0-3"]), None, readable_only=False)
    backfills.request(seen, "test", approved=False)
    assert refused(*resumed)["failed"]["error"] == "StorageRefused"
    with _without_room():
        progress = tidemark(*resumed, "--dry-run", "--json")
    (chunk,) = progress.json["chunks"]
    assert (progress.code, chunk["plan"], chunk["done"]) == (ExitCode.OK, None, False)


@pytest.mark.broker
def test_status_shows_all_pipelines_even_if_it_cannot_record_them(
    lake: FileLake, tidemark: Command
) -> None:
    """The error follows the pipelines; without --record nothing is written."""
    with _without_room():
        printed = tidemark("status", "events", "--json")
        shown = tidemark("status", "events", "--record")
        record = tidemark("status", "events", "--record", "--json")
    (seen,) = printed.json
    assert (seen["pipeline"], seen["records"], seen["open_plans"]) == ("events", 9, [4])
    assert "events" in shown.out
    assert "StorageRefused: The storage refused writing the status history at " in shown.err
    assert str(lake.root) in shown.err
    again, error = record.json
    assert (again["pipeline"], again["records"]) == ("events", 9)
    assert error["error"] == "StorageRefused"
    assert "File too large" in error["problem"]
    assert shown.code == record.code == ExitCode.REFUSED

"""The command line: what it prints, and where, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.commands import Command, in_process
from tests.support.plans import append_events
from tidemark.app import App
from tidemark.cli import app
from tidemark.connections import connection_variable, kafka_connection
from tidemark.core.errors import ExitCode
from tidemark.core.events import BackfillRequested
from tidemark.core.offsets import Span, SpanSet
from tidemark.dev.broker import BrokerStatus
from tidemark.dev.producer import produce
from tidemark.lake.table_io import query_rows

TIDEMARK = Path(sys.executable).with_name("tidemark")
GROUP: Any = typer.main.get_group(app)


def tidemark(
    *arguments: str, home: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in an environment that has no connection but those given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW_CONN", "TIDEMARK"))}
    return subprocess.run(
        [str(TIDEMARK), *arguments],
        env={**kept, "TIDEMARK_HOME": str(home), "COLUMNS": "120", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command in this process, in an environment without connections."""
    for name in os.environ:
        if name.startswith(("AIRFLOW_CONN", "TIDEMARK")):
            monkeypatch.delenv(name)
    return in_process({"TIDEMARK_HOME": str(tmp_path), "COLUMNS": "120"}, monkeypatch, capsys)


@pytest.fixture
def away(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The same with a connection to a Kafka that does not answer."""
    monkeypatch.setenv(connection_variable("kafka_default"), kafka_connection("127.0.0.1:1"))
    return command


def commands(group: Any, *above: str) -> Iterator[tuple[str, ...]]:
    """Every command and every group, by its words."""
    yield above
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        else:
            yield *above, name


REPORTS_NOTHING = {("demo",), ("spark", "serve")}
"""Print what they do as they go."""
WRITES_NOTHING = {
    *{("status",), ("verify",), ("sample", "list"), ("broker", "status"), ("spark", "status")},
    *{("publication", "list"), ("publication", "view"), ("quarantine", "list"), ("report",)},
    ("schema", "init"),
}
"""Status keeps what it sees only if `--record` is said, and shows the same without. A report writes
its page and no table."""
STARTS_AND_STOPS = {
    *{("up",), ("down",), ("demo",), ("broker", "start"), ("broker", "stop")},
    *{("spark", "start"), ("spark", "serve"), ("spark", "stop")},
}


def test_what_reports_has_json_and_what_writes_has_a_dry_run() -> None:
    """Every command; one that is new and an exception has to say so here."""
    missing = []
    for words in commands(GROUP):
        command = GROUP
        for word in words:
            command = command.commands[word]
        if hasattr(command, "commands"):
            continue
        options = {name for option in command.params for name in option.opts}
        options |= {name for option in command.params for name in option.secondary_opts}
        if "--json" not in options and words not in REPORTS_NOTHING:
            missing.append((*words, "--json"))
        if "--dry-run" not in options and words not in WRITES_NOTHING | STARTS_AND_STOPS:
            missing.append((*words, "--dry-run"))
    assert missing == []


@pytest.mark.parametrize("words", list(commands(GROUP)), ids=" ".join)
def test_every_command_explains_itself(
    command: Command, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--help` describes a command and each of its options, on a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = command(*words, "--help")
    assert ran.code == ExitCode.OK
    assert " ".join(("Usage: tidemark", *words)) in ran.out
    assert "\\b" not in ran.out
    found = GROUP
    for name in words:
        found = found.commands[name]
    options = [each for each in found.params if each.param_type_name == "option"]
    assert [each.name for each in options if not getattr(each, "help", None)] == []
    assert "..." not in " ".join(ran.out.partition("Commands:")[2].splitlines())


def test_wrong_usage_exits_with_2(command: Command) -> None:
    """An unknown command, a missing argument, and half a backfill."""
    for arguments in (("nosuch",), ("plan",), ("plan", "prices", "--start", "3")):
        ran = command(*arguments)
        assert (ran.code, ran.out) == (ExitCode.USAGE, "")


def test_a_backfill_is_shown_before_it_is_gone_on_with(away: Command, tmp_path: Path) -> None:
    """What was asked for is recorded: beside --resume nothing else can be said."""
    asked = BackfillRequested(
        cluster_id="c",
        topic="prices",
        topic_id="t",
        requested_by="cli:ann:1",
        readable_only=False,
        chunks=({0: SpanSet.of([Span(0, 5)])}, {0: SpanSet.of([Span(5, 7)])}),
    )
    control = App(environ={"TIDEMARK_HOME": str(tmp_path)}).control
    append_events(control, "prices", asked)
    resume = ("backfill", "prices", "--resume", "cli:ann:1")
    shown = away(*resume, "--dry-run", "--json")
    assert shown.json == {
        "pipeline": "prices",
        "requested_by": "cli:ann:1",
        "chunks": [
            {"number": 1, "offsets": 5, "plan": None, "done": False},
            {"number": 2, "offsets": 2, "plan": None, "done": False},
        ],
        "failed": None,
    }
    both = away(*resume, "--retained")
    assert both.code == ExitCode.REFUSED
    assert "InvalidSelection" in both.err
    unknown = away("backfill", "prices", "--resume", "x")
    assert "UnknownBackfill" in unknown.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "--from-group, --from-checkpoint, --from-table, --offsets"),
        (("--offsets", "0:5", "--from-group", "g"), "one of"),
        (("--from-table", "/lake/t"), "--from-table and --app-id together"),
        (("--app-id", "a", "--offsets", "0:5"), "--from-table and --app-id together"),
        (("--offsets", "0:-5"), "PARTITION:OFFSET"),
        (("--offsets", "0:5,0:6"), "each partition once"),
    ],
)
def test_a_beginning_is_said_in_one_way(
    away: Command, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    """Refused by name before anybody is asked, and nothing is written."""
    ran = away("start", "prices", *options, "--json")
    assert ran.code == ExitCode.REFUSED
    record = ran.json
    assert record["error"] == "InvalidStart"
    assert expected in record["expected"]
    assert list(tmp_path.iterdir()) == []


def test_a_named_error_exits_with_its_code_and_says_what_to_do(tmp_path: Path) -> None:
    """The process prints the problem and the fix on standard error."""
    ran = tidemark("plan", "nosuch", home=tmp_path)
    assert (ran.returncode, ran.stdout) == (ExitCode.REFUSED, "")
    assert ran.stderr.startswith("UnknownPipeline: No pipeline is named 'nosuch'")
    assert [line.split()[0] for line in ran.stderr.splitlines()[1:]] == ["fix"]


def test_errors_are_json_with_the_option_json(command: Command) -> None:
    """A script reads one document, whatever happened."""
    ran = command("plan", "prices", "--json")
    assert ran.code == ExitCode.REFUSED
    assert ran.json["error"] == "UnknownConnection"


def test_status_shows_what_each_pipeline_would_be_refused_for(
    command: Command, tmp_path: Path
) -> None:
    """One pipeline's missing connection is its own problem, and no reason to show nothing."""
    ran = command("status", "--json")
    assert ran.code == ExitCode.OK
    shown = ran.json
    assert {each["problem"]["error"] for each in shown} == {"UnknownConnection"}
    assert len(shown) == len(App.from_environment({"TIDEMARK_HOME": str(tmp_path)}).specs)


def test_a_probe_asks_for_alarms_and_a_table_keeps_what_was_seen(
    command: Command, tmp_path: Path
) -> None:
    """Exit code 65 on request only; what is recorded replaces what was seen before."""
    for _ in range(2):
        ran = command("status", "prices", "orders", "--check", "--record")
        assert ran.code == ExitCode.REFUSED
        assert "prices: UnknownConnection: Connection 'kafka_default' is not defined" in ran.err
    table = DeltaTable(App.from_environment({"TIDEMARK_HOME": str(tmp_path)}).layout.status_table)
    told = query_rows(table, "SELECT pipeline, problem, alarms, forecast FROM t ORDER BY pipeline")
    unknown = {"problem": "UnknownConnection", "alarms": "UnknownConnection", "forecast": "unknown"}
    assert told == [{"pipeline": name, **unknown} for name in ("orders", "prices")]
    assert command("status", "nosuch", "--record").code == ExitCode.REFUSED


@pytest.mark.broker
def test_plan_and_status_without_a_jvm(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path
) -> None:
    """A dry run records nothing, a plan is kept by its requester alone, status shows the lag."""
    name = topic(partitions=6)
    produce({"bootstrap.servers": broker.bootstrap}, "prices", records=200, topic=name)
    specs = tmp_path / "pipelines"
    specs.mkdir()
    (specs / "tides.yaml").write_text(
        f'name: tides\ntopic: {name}\nschedule: "@daily"\nstart: earliest\n', encoding="utf-8"
    )
    environ = {
        "TIDEMARK_PIPELINES": str(specs),
        connection_variable("kafka_default"): kafka_connection(broker.bootstrap),
        "PATH": str(TIDEMARK.parent),  # no Java
    }

    def answer(*arguments: str) -> Any:
        ran = tidemark(*arguments, "--json", home=tmp_path, environ=environ)
        assert ran.returncode == ExitCode.OK, ran.stderr
        return json.loads(ran.stdout)

    preview = answer("plan", "tides", "--dry-run")
    assert preview["outcome"] == "draft"
    # A file for each partition with records; of bytes an empty table says nothing.
    partitions = {partition for partition, _, _ in preview["plan"]["ranges"]}
    assert (preview["files"], preview["bytes"]) == (len(partitions), None)
    (draft,) = answer("ingest", "tides", "--dry-run")
    assert (draft["outcome"], draft["plan"]["offsets"]) == ("draft", 200)
    assert not (tmp_path / "lakehouse").exists()
    first = answer("plan", "tides")
    assert first["outcome"] == "new"
    assert first["plan"]["offsets"] == 200
    assert answer("plan", "tides")["outcome"] == "adopted"
    (status,) = answer("status")
    assert (status["lag"], status["open_plans"], status["problem"]) == (200, [1], None)

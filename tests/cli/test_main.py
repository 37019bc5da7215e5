"""The command line: output, exit codes and options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.commands import Command, in_process
from tests.support.file_lake import home_lake
from tests.support.plans import append_events
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.cli import HEADINGS, PHASES, app
from tidemark.core.errors import ExitCode
from tidemark.core.events import BackfillRequested
from tidemark.core.offsets import Span, SpanSet
from tidemark.delta.table_io import query_rows
from tidemark.local.broker import BrokerStatus
from tidemark.local.producer import produce

TIDEMARK = Path(sys.executable).with_name("tidemark")
GROUP: Any = typer.main.get_group(app)


def tidemark(
    *arguments: str, home: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in an environment without other connections."""
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
def without_kafka(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command with a connection to a Kafka that does not answer."""
    monkeypatch.setenv(connection_variable("kafka_default"), kafka_connection("127.0.0.1:1"))
    return command


def commands(group: Any, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and every group."""
    yield above
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        else:
            yield *above, name


REPORTS_NOTHING = {("airflow",), ("demo",), ("shell",), ("spark", "serve")}
"""Commands that print only their progress, or the output of Airflow or of your own statements."""
WRITES_NOTHING = {
    *{
        ("status",),
        ("coverage",),
        ("records",),
        ("sql",),
        ("console",),
        ("verify",),
        ("sample", "list"),
        ("broker", "status"),
        ("spark", "status"),
    },
    *{("publication", "list"), ("publication", "view"), ("quarantine", "list"), ("report",)},
    *{("schema", "init"), ("pipeline", "check")},
    *{("topics", "list"), ("topics", "describe"), ("topics", "peek")},
}
"""Commands that write no table. `status` writes one only with `--record`, and prints the same
without it."""
STARTS_AND_STOPS = {
    *{("up",), ("down",), ("demo",), ("shell",), ("broker", "start"), ("broker", "stop")},
    *{("spark", "start"), ("spark", "serve"), ("spark", "stop")},
}


PASSED_ON = {("airflow",)}
"""Commands whose options belong to another program."""


def test_the_version_is_that_of_the_installed_package(command: Command) -> None:
    assert command("--version").out == f"tidemark {version('tidemark-lakehouse')}\n"


def test_a_command_builds_one_app(command: Command) -> None:
    """So it reads the specs once."""
    for words in ("check prices", "decode prices", "publication list prices", "maintain --dry-run"):
        with patch.object(App, "__init__", autospec=True, side_effect=App.__init__) as built:
            command(*words.split())
        assert built.call_count == 1, words


def test_commands_have_json_and_a_dry_run() -> None:
    """A command without one of them needs the option, or is in a set above with its reason."""
    missing = []
    without_dry_run = WRITES_NOTHING | STARTS_AND_STOPS | PASSED_ON
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
        if "--dry-run" not in options and words not in without_dry_run:
            missing.append((*words, "--dry-run"))
    assert missing == [], "add the options, or list the commands in a set of this file"


def test_each_command_that_may_be_slow_has_a_phase() -> None:
    """The text names parameters of its command. `STARTS_AND_STOPS` print their own phases."""
    others = STARTS_AND_STOPS | PASSED_ON | {("console",), ("sql",), ("publication", "view")}
    others |= {("sample", "list"), ("sample", "produce")}
    for words in commands(GROUP):
        command = GROUP
        for word in words:
            command = command.commands[word]
        text = PHASES.get(" ".join(words))
        if text is None:
            assert hasattr(command, "commands") or words in others, words
        else:
            assert text.format_map({each.name: each.name for each in command.params})


@pytest.mark.parametrize("words", list(commands(GROUP)), ids=" ".join)
def test_every_command_and_option_has_help(
    command: Command, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrow terminal does not hide it."""
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
    listed = ran.out.partition("Commands:" if words else "Every day:")[2]
    assert "..." not in " ".join(listed.splitlines())


def test_the_help_lists_every_command_under_one_heading() -> None:
    names = [name for listed in HEADINGS.values() for name in listed.split()]
    assert sorted(names) == sorted(GROUP.commands)


def test_commands_that_need_a_reason_are_under_the_heading_of_repairs() -> None:
    needing = {
        name
        for name, command in GROUP.commands.items()
        for each in (command, *getattr(command, "commands", {}).values())
        for option in each.params
        if option.name == "reason" and option.required
    }
    assert {"undo", "abandon", "rewind", "publication"} <= needing
    assert needing <= set(HEADINGS["Repair"].split())


def test_wrong_usage_exits_with_2(command: Command) -> None:
    """Covers an unknown command, a missing argument and an unknown option."""
    for arguments in (("nosuch",), ("plan",), ("plan", "prices", "--start", "3")):
        ran = command(*arguments)
        assert (ran.code, ran.out) == (ExitCode.USAGE, "")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("quarantine list", "--reason"),
        ("quarantine replay", "--reason"),
        ("offsets import", "--others"),
        ("report", "--since"),
        ("records --partition 0", "--time"),
    ],
)
def test_the_error_of_a_wrong_option_begins_with_its_value(
    command: Command, words: str, option: str
) -> None:
    ran = command(*words.split(), "prices", option, "x")
    assert ran.code == ExitCode.USAGE
    assert f"Error: Invalid value for '{option}': 'x' " in ran.err


def test_resume_shows_the_chunks_and_accepts_no_selection(
    without_kafka: Command, tmp_path: Path
) -> None:
    """The requested offsets are recorded."""
    requested = BackfillRequested(
        cluster_id="c",
        topic="prices",
        topic_id="t",
        requested_by="cli:ann:1",
        readable_only=False,
        chunks=({0: SpanSet.of([Span(0, 5)])}, {0: SpanSet.of([Span(5, 7)])}),
    )
    control = App(environ={"TIDEMARK_HOME": str(tmp_path)}).control
    append_events(control, "prices", requested)
    resume = ("backfill", "prices", "--resume", "cli:ann:1")
    shown = without_kafka(*resume, "--dry-run", "--json")
    assert shown.json == {
        "pipeline": "prices",
        "requested_by": "cli:ann:1",
        "chunks": [
            {"number": 1, "offsets": 5, "plan": None, "done": False},
            {"number": 2, "offsets": 2, "plan": None, "done": False},
        ],
        "failed": None,
    }
    both = without_kafka(*resume, "--retained")
    assert both.code == ExitCode.REFUSED
    assert "InvalidSelection" in both.err
    unknown = without_kafka("backfill", "prices", "--resume", "x")
    assert "no chunk 1 of a backfill requested by x" in unknown.err


def test_a_wrong_selection_of_a_backfill_is_refused_before_kafka_is_read(command: Command) -> None:
    wrong = ("--from", "2026-03-01T00:00", "--until", "2026-03-02", "--dry-run", "--json")
    ran = command("backfill", "prices", *wrong)
    assert (ran.code, ran.json["error"]) == (ExitCode.REFUSED, "InvalidSelection")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "--from-group, --from-checkpoint, --offsets"),
        (("--offsets", "0:5", "--from-group", "g"), "one of"),
        (("--offsets", "0:-5"), "PARTITION:OFFSET"),
        (("--offsets", "0:5,0:6"), "each partition once"),
    ],
)
def test_start_needs_exactly_one_source(
    without_kafka: Command, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    """Other options are refused before any request, and nothing is written."""
    ran = without_kafka("offsets", "import", "prices", *options, "--json")
    assert ran.code == ExitCode.REFUSED
    record = ran.json
    assert record["error"] == "InvalidStart"
    assert expected in record["expected"]
    assert list(tmp_path.iterdir()) == []


def test_a_named_error_exits_with_its_code_and_prints_the_fix(tmp_path: Path) -> None:
    """The process prints the problem and the fix on standard error."""
    ran = tidemark("plan", "nosuch", home=tmp_path)
    assert (ran.returncode, ran.stdout) == (ExitCode.REFUSED, "")
    assert ran.stderr.startswith("UnknownPipeline: No pipeline is named 'nosuch'")
    assert [line.split()[0] for line in ran.stderr.splitlines()[1:]] == ["fix", "see"]


def test_the_status_of_an_unknown_table_is_refused_and_not_recorded(
    tmp_path: Path, offline: Command
) -> None:
    home_lake(tmp_path)
    ran = offline("status", "events@juli", "--record")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert ran.err.startswith("InvalidReference")
    assert not (tmp_path / "lakehouse" / "control" / "status").exists()


def test_a_run_of_unknown_pipelines_prints_no_summary(without_kafka: Command) -> None:
    ran = without_kafka("run", "nosuch")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert "nosuch: UnknownPipeline: " in ran.err


@pytest.mark.parametrize("json_option", [(), ("--json",)])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("plan",), "Missing argument"),
        (("plan", "nosuch"), "No pipeline is named 'nosuch'"),
        (("ingest", "nosuch"), "No pipeline is named 'nosuch'"),
        (("run", "nosuch"), "No pipeline is named 'nosuch'"),
        (("check", "prices", "--plan", "3", "--dry-run"), "Pipeline 'prices' has no plan 3"),
        (("decode", "prices"), "has no typed table"),
        (("offsets", "import", "prices", "--offsets", "0:x"), "Cannot start from"),
    ],
)
def test_an_error_is_printed_once(
    command: Command, arguments: tuple[str, ...], text: str, json_option: tuple[str, ...]
) -> None:
    """A log line on standard error has only its name."""
    ran = command("--verbose", *arguments, *json_option)
    document = ran.out if json_option and ran.code != ExitCode.USAGE else ran.err
    assert (ran.out + ran.err).count(text) == document.count(text) == 1


def test_errors_are_json_with_the_option_json(command: Command) -> None:
    """A script reads one document."""
    ran = command("plan", "prices", "--json")
    assert ran.code == ExitCode.REFUSED
    assert ran.json["error"] == "EmbeddedBrokerStopped"
    assert "tidemark broker start" in ran.json["fix"]


def test_status_shows_the_error_that_refuses_each_pipeline(
    command: Command, tmp_path: Path
) -> None:
    """An undefined connection does not end the command, and sets its exit code.

    The text has the error once for all pipelines.
    """
    ran = command("status", "--json")
    assert ran.code == ExitCode.REFUSED
    shown = ran.json
    assert {each["problem"]["error"] for each in shown} == {"EmbeddedBrokerStopped"}
    specs = App.from_environment({"TIDEMARK_HOME": str(tmp_path)}).specs
    assert len(shown) == len(specs)
    printed = command("status")
    assert printed.code == ExitCode.REFUSED
    assert printed.err.startswith(f"{', '.join(sorted(specs))}: EmbeddedBrokerStopped: ")
    assert printed.err.count("EmbeddedBrokerStopped: ") == 1


def test_status_can_fail_on_alarms_and_record_the_status(command: Command, tmp_path: Path) -> None:
    """With --exit-code, the exit code is 65. A later status replaces the recorded one.

    The history has both.
    """
    for _ in range(2):
        ran = command("status", "prices", "orders", "--exit-code", "--record")
        assert ran.code == ExitCode.REFUSED
        assert "prices, orders: EmbeddedBrokerStopped: The embedded broker is not run" in ran.err
    layout = App.from_environment({"TIDEMARK_HOME": str(tmp_path)}).layout
    assert DeltaTable(layout.status_history).count() == 4
    table = DeltaTable(layout.status_table)
    rows = query_rows(table, "SELECT pipeline, problem, alarms, forecast FROM t ORDER BY pipeline")
    name = "EmbeddedBrokerStopped"
    unknown = {"problem": name, "alarms": name, "forecast": "unknown"}
    assert rows == [{"pipeline": name, **unknown} for name in ("orders", "prices")]
    assert command("status", "nosuch", "--record").code == ExitCode.REFUSED


@pytest.mark.broker
def test_plan_and_status_need_no_jvm(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path
) -> None:
    """A dry run records nothing, a second plan adopts the open one, status shows the lag."""
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
    # A file for each partition with records; the size is unknown for an empty table.
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


OTHER_MEANINGS = {
    "--exit-code": {"status", "report"},
    "--limit": {"sql"},
    "--name": {"pipeline init"},
    "--offsets": {"backfill", "offsets import"},
    "--partition": {"backfill"},
    "--plan": {"backfill", "ingest", "abandon"},
    "--port": {"up"},
    "--reason": {"quarantine list", "quarantine replay"},
    "--records": {"sample produce", "topics peek", "pipeline init"},
    "--until": {"backfill", "report"},
    "pipelines": {"decode", "upsert"},
}
"""Commands with their own meaning of an option or argument of several commands."""


def first_sentences() -> dict[str, dict[str, str]]:
    """Return the first sentence about each option or argument, by command."""
    found: dict[str, dict[str, str]] = {}
    for words in commands(GROUP):
        command = GROUP
        for word in words:
            command = command.commands[word]
        for parameter in command.params:
            name = "/".join([*parameter.opts, *parameter.secondary_opts])
            found.setdefault(name, {})[" ".join(words)] = parameter.help.split(". ")[0].rstrip(".")
    return found


def test_commands_describe_the_same_option_with_the_same_words() -> None:
    """Further sentences are about the command, such as a default."""
    found = first_sentences()
    assert set(OTHER_MEANINGS) <= set(found)
    for name, by_command in found.items():
        others = OTHER_MEANINGS.get(name, set())
        shared = {text for command, text in by_command.items() if command not in others}
        assert len(shared) <= 1, f"{name}: use one text, or add it to OTHER_MEANINGS: {shared}"
        if others:
            assert others <= set(by_command), name
            assert len(set(by_command.values())) > 1, name

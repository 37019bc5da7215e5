"""Log lines as JSON: one line for each event, and fields under the same names everywhere."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.support.sources import calls
from tidemark.core.logs import JsonFormatter, LogFields
from tidemark.spark.engine import Server

OWN = {"time", "level", "logger", "event", "exception", "detail"}
"""Fields of every line, which no event has as a field of its own."""


class Color(Enum):
    """An enum."""

    RED = "red"


@pytest.fixture
def logged() -> tuple[logging.Logger, list[dict[str, Any]]]:
    """A logger of the package, and the objects of its lines."""
    # Pytest captures registered loggers, and its workers cannot send every text of these tests.
    log, lines = logging.Logger("tidemark.tests.logs", logging.INFO), list[dict[str, Any]]()  # noqa: LOG001  an unregistered one

    class Lines(logging.Handler):
        """Parses the lines."""

        def emit(self, record: logging.LogRecord) -> None:
            line = self.format(record)
            assert line.splitlines() == [line]
            lines.append(json.loads(line))

    handler = Lines()
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    return log, lines


Logged = tuple[logging.Logger, list[dict[str, Any]]]


def test_an_event_has_its_fields_with_their_types(logged: Logged) -> None:
    log, lines = logged
    log.warning("landed, again pipeline=%s plan=%d seconds=%.1f kind=%s", "p", 7, 1.25, Color.RED)
    (line,) = lines
    at = datetime.fromisoformat(line.pop("time"))
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)
    assert line == {
        "level": "WARNING",
        "logger": "tidemark.tests.logs",
        "event": "landed, again",
        "pipeline": "p",
        "plan": 7,
        "seconds": 1.25,
        "kind": "red",
    }


@pytest.mark.parametrize(
    "value",
    [
        "a b plan=9",
        'quote " and \\',
        "line\nline\r\n",
        "\u2028\u0085\x0b\x1b[31m\x00",
        "\ud800",
        "%s",
    ],
    ids=ascii,
)
def test_no_value_breaks_a_line_or_forges_a_field(logged: Logged, value: str) -> None:
    log, lines = logged
    log.info("planned pipeline=%s plan=%d", value, 7)
    log.info("step ended %s", LogFields({"pipeline": value, "plan": 7}))
    log.info("failed message=%s", ValueError(value))
    assert [(each["event"], each.get("pipeline"), each.get("plan")) for each in lines] == [
        ("planned", value, 7),
        ("step ended", value, 7),
        ("failed", None, None),
    ]
    assert lines[2]["message"] == value


def test_fields_known_at_run_time_have_their_names(logged: Logged) -> None:
    log, lines = logged
    values = {"table": "a b", "replaced": 7, "dry_run": False, "removed": [[0, 1]], "plan": None}
    log.info("maintained %s", LogFields(values))
    assert {key: value for key, value in lines[0].items() if key not in OWN} == {
        key: value for key, value in values.items() if value is not None
    }
    assert lines[0]["event"] == "maintained"


def test_fields_in_text_have_no_python_representations() -> None:
    values = {"pipeline": "a b", "replaces": False, "records": 7, "plan": None, "ranges": [[0, 1]]}
    assert str(LogFields(values)) == "pipeline=a b replaces=false records=7 ranges=[[0,1]]"


def test_further_lines_of_a_message_are_its_detail(logged: Logged) -> None:
    log, lines = logged
    log.info("preview pipeline=%s\n%s\n%s", "p", "plan=1 of 50%", "two\nlines")
    assert (lines[0]["event"], lines[0]["pipeline"]) == ("preview", "p")
    assert lines[0]["detail"] == "plan=1 of 50%\ntwo\nlines"


def test_a_field_never_replaces_time_level_logger_or_event(logged: Logged) -> None:
    log, lines = logged
    log.info("maintained %s", LogFields({"level": "x", "event": "x", "time": "x", "logger": "x"}))
    assert (lines[0]["level"], lines[0]["event"]) == ("INFO", "maintained")
    assert "x" not in lines[0].values()


def test_a_traceback_is_the_field_exception(logged: Logged) -> None:
    log, lines = logged
    try:
        raise ZeroDivisionError("by\nzero")
    except ZeroDivisionError:
        log.exception("unexpected error item=%s", "p")
    assert (lines[0]["event"], lines[0]["item"]) == ("unexpected error", "p")
    assert lines[0]["exception"].startswith("Traceback")
    assert lines[0]["exception"].endswith("ZeroDivisionError: by\nzero")


@pytest.mark.parametrize(
    ("template", "arguments", "event"),
    [
        ("a=%s b=%*d", ("x", 5, 7), "a=x b=    7"),
        ("%(a)s=%(b)r", ({"a": "x", "b": "y"},), "x='y'"),
        ("100% of a=%s\nnext", (), "100% of a=%s\nnext"),
    ],
)
def test_messages_of_other_packages_stay_whole(
    template: str, arguments: tuple[object, ...], event: str
) -> None:
    record = logging.LogRecord("py4j.clientserver", 30, "f", 1, template, arguments, None)
    line = JsonFormatter().format(record)
    assert json.loads(line)["event"] == event
    assert len(line.splitlines()) == 1


def test_a_token_is_masked_as_in_text(logged: Logged) -> None:
    log, lines = logged
    server = Server(host="localhost", token="correct-horse")
    log.info("Spark selected engine=%s", server)
    assert lines[0]["engine"] == "Spark Connect at localhost:15002"


# -- processes -------------------------------------------------------------------------------------


def lines_of(code: str) -> list[dict[str, Any]]:
    """Run code in a process that logs JSON; the lines of its standard error."""
    begin = "from tidemark.core.logs import *; configure_logging(LogFormat.JSON)\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_warnings_and_uncaught_exceptions_are_lines_as_well() -> None:
    code = "import warnings; warnings.warn('a\\nb')\nraise SystemError('c\\nd')"
    warned, ended = lines_of(code)
    assert warned["logger"] == "py.warnings"
    assert "UserWarning: a\nb" in warned["event"]
    assert (ended["level"], ended["event"]) == ("CRITICAL", "unexpected error ends the process")
    assert ended["exception"].endswith("SystemError: c\nd")


def test_an_uncaught_exception_of_a_thread_is_a_line() -> None:
    code = "import threading; threading.Thread(target=lambda: int('c\\nd')).start()"
    (ended,) = lines_of(code)
    assert (ended["level"], ended["event"]) == ("CRITICAL", "unexpected error ends a thread")
    assert "ValueError" in ended["exception"]


def test_progress_of_a_command_and_each_line_of_its_job_are_objects() -> None:
    code = (
        "from tidemark.cli.output import job_line, note, step\n"
        "step('engine: a'); note('[red]b')\n"
        "job_line('26/03/01 WARN Utils: c'); job_line('{not json'); job_line('[1]')\n"
        """job_line('{"event": "landed", "plan": 7}')\n"""
    )
    *progress, landed = lines_of(code)
    assert [(each["event"], each["message"]) for each in progress] == [
        ("progress", text)
        for text in ("engine: a", "[red]b", "26/03/01 WARN Utils: c", "{not json", "[1]")
    ]
    assert landed == {"event": "landed", "plan": 7}


def test_the_loggers_of_spark_that_contain_values_stay_disabled() -> None:
    code = (
        "import logging\n"
        "from tidemark.spark.sessions import disable_value_logging\n"
        "disable_value_logging()\n"
        "for name in ('SQLQueryContextLogger', 'DataFrameQueryContextLogger', 'other'):\n"
        "    logging.getLogger(name).error('value 42')\n"
    )
    assert [each["logger"] for each in lines_of(code)] == ["other"]


# -- all log calls ---------------------------------------------------------------------------------

_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_FORM = re.compile(
    r"(?P<event>[^%=\n]+)"
    r"(?: %s|(?P<fields>(?: [a-z_]+=%(?:s|d|\.\df))*))"
    r"(?P<detail>(?:\n%s)*)"
)
_PASSED_ON = {"airflow/logs.py"}
"""Modules that log lines of other programs unchanged."""


def log_calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the place, the template and the call of each log call of the package."""
    sources = PROJECT / "include" / "tidemark"
    for file, call in calls(sorted(sources.rglob("*.py")), ["log."]):
        name = str(file.relative_to(sources))
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _METHODS
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id in ("log", "_log")
            and name not in _PASSED_ON
        ):
            template = call.args[call.func.attr == "log"]
            assert isinstance(template, ast.Constant), f"{name}:{call.lineno}"
            yield f"{name}:{call.lineno}", str(template.value), call


def documented_fields() -> set[str]:
    """Return the names in the first columns of the tables of the page."""
    page = (PROJECT / "docs" / "reference" / "logs.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}


def test_every_log_call_has_an_event_and_documented_fields() -> None:
    calls = list(log_calls())
    assert len(calls) > 50
    documented, wrong = documented_fields(), []
    for place, template, _ in calls:
        form = _FORM.fullmatch(template)
        names = re.findall(r"([a-z_]+)=", form["fields"] or "") if form else []
        if not form or len({*names}) < len(names) or {*names} - documented or {*names} & OWN:
            wrong.append((place, template))
    assert wrong == []


def test_every_documented_field_is_logged() -> None:
    source = " ".join(
        file.read_text(encoding="utf-8")
        for file in (PROJECT / "include" / "tidemark").rglob("*.py")
        if "log." in file.read_text(encoding="utf-8")
    )
    unused = {
        name for name in documented_fields() - OWN if not re.search(rf"{name}=%|\"{name}\"", source)
    }
    assert unused == set()

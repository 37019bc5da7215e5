"""Fail points kill the process at the selected step, and only there."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import tidemark
from tests.conftest import PROJECT
from tests.support.services import NOW
from tests.support.typed_lake import home_typed_lake
from tidemark.app.adapters import AdapterWrapper
from tidemark.app.app import App
from tidemark.app.connections import kafka_connection
from tidemark.core.errors import SetupError
from tidemark.core.events import Adopted
from tidemark.core.ledger import CheckedLedger
from tidemark.core.origins import RunOrigin
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.data_table import DeltaDataTable
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.local.failpoints import PORTS, STEPS, VARIABLE, FailPoint, kill_message
from tidemark.silver.typed.followed_tables import PlanSchemas

pytestmark = pytest.mark.slow

DECODE = """
import os
from pathlib import Path
from tests.support.typed_lake import TypedLake, decode_with_files
from tidemark.app.app import App

decode_with_files(TypedLake(Path(os.environ["TIDEMARK_HOME"], "lakehouse"), broken={1}))
App.from_environment().pipeline("events").typed.decode()
"""

SPEC = "name: events\ntopic: events\nschedule: '@daily'\n"

APPEND_TWICE = """
import sys
from datetime import UTC, datetime
from tidemark.core.events import Started
from tidemark.app.app import App

app = App.from_environment()
for _ in range(2):
    # Each step opens its own table, as commands do. Calls are counted over the whole process.
    control = app.control
    started = Started(cluster_id="c", topic="t", topic_id="i", requested_by="test", offsets={0: 0})
    control.append(control.ledger("events"), [started], datetime.now(UTC))
print("survived")
"""


def app(home: Path, **environ: str) -> App:
    """Return an app with one pipeline, whose broker gets no request."""
    (home / "events.yaml").write_text(SPEC)
    return App(
        environ={
            "TIDEMARK_HOME": str(home),
            "TIDEMARK_PIPELINES": str(home),
            "AIRFLOW_CONN_KAFKA_DEFAULT": kafka_connection("127.0.0.1:1"),
            **environ,
        }
    )


def append_twice(home: Path, fail_at: str | None) -> subprocess.CompletedProcess[str]:
    """Run a process that appends two events to the control table of a home."""
    fail_point = {} if fail_at is None else {VARIABLE: fail_at}
    return subprocess.run(
        [sys.executable, "-c", APPEND_TWICE],
        env={**os.environ, "TIDEMARK_HOME": str(home), **fail_point},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_the_variable_adapters_are_not_wrapped(tmp_path: Path) -> None:
    """Production runs without wrappers."""
    plain = app(tmp_path)
    events = plain.pipeline("events")
    assert type(plain.control) is DeltaControlTable
    assert type(events.adapters.bronze()) is DeltaDataTable
    assert type(events.adapters.watermarks) is KafkaWatermarkReader


def test_only_the_adapter_of_the_step_is_wrapped(tmp_path: Path) -> None:
    """Its other methods stay unchanged."""
    failing = app(tmp_path, TIDEMARK_FAIL_AT="control.append:after:1")
    assert type(failing.control) is not DeltaControlTable
    assert failing.control.ledger("events").event_number == 0
    assert type(failing.pipeline("events").adapters.bronze()) is DeltaDataTable


@pytest.mark.parametrize(
    ("fail_at", "events"),
    [
        ("control.append:before:1", 0),
        ("control.append:after:1", 1),
        ("control.append:before:2", 1),
        ("control.append:after:2", 2),
        ("control.ledger:after:2", 1),
    ],
)
def test_the_process_ends_by_sigkill_at_the_selected_call(
    tmp_path: Path, fail_at: str, events: int
) -> None:
    """It first writes the fail point to standard error."""
    ended = append_twice(tmp_path, fail_at)
    assert ended.returncode == -signal.SIGKILL
    assert kill_message(fail_at) in ended.stderr
    assert "survived" not in ended.stdout
    assert app(tmp_path).control.ledger("events").event_number == events


@pytest.mark.parametrize("fail_at", [None, "control.append:after:3", "table.append:before:1"])
def test_a_step_that_is_not_reached_does_not_kill_the_process(
    tmp_path: Path, fail_at: str | None
) -> None:
    """Other steps run as usual."""
    ended = append_twice(tmp_path, fail_at)
    assert (ended.returncode, ended.stdout.strip()) == (0, "survived")


def test_an_error_of_the_step_is_raised_to_the_caller(tmp_path: Path) -> None:
    """`after` means after the return of the step."""
    point = FailPoint("control.append:after:1")
    control = point.wrap("control", DeltaControlTable(str(tmp_path / "control")))
    ledger = CheckedLedger(control.ledger("events"))
    adopted = Adopted(sequence=1, origin=RunOrigin("test"))
    with pytest.raises(TypeError):
        control.append(ledger, [adopted], NOW, timedelta())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "control.append",
        "control.append:after",
        "control.append:during:1",
        "control.append:after:0",
        "control.append:after:-1",
        "control.append:after:first",
        "control.append:after:1:2",
        "control.forget:after:1",
        "append:after:1",
    ],
)
def test_an_unknown_fail_point_is_refused(tmp_path: Path, text: str) -> None:
    """A test with a misspelt fail point must not pass."""
    with pytest.raises(SetupError) as refused:
        _ = app(tmp_path, TIDEMARK_FAIL_AT=text).control
    assert repr(text) in str(refused.value)
    for step in STEPS:
        assert step in str(refused.value)


def test_every_port_has_fail_points() -> None:
    """Each Protocol of the services that write is one of PORTS, or part of one."""
    reports = ("cluster", "records", "service", "typed_rows")
    only_read = {f"tidemark.ops.report.{name}" for name in reports}
    protocols = {
        value
        for module in pkgutil.walk_packages(tidemark.__path__, "tidemark.")
        if module.name.split(".")[1] not in {"airflow", "cli", "console", "spark"}
        if module.name not in only_read
        for value in vars(importlib.import_module(module.name)).values()
        if inspect.isclass(value) and getattr(value, "_is_protocol", False)
        if value.__module__ == module.name
    }
    covered = {each for some in PORTS.values() for port in some for each in port.__mro__}
    # A resolver of schemas only calls other ports, and a wrapper is no port.
    assert protocols - {AdapterWrapper, PlanSchemas} <= covered
    assert {"control.append", "control.ledger", "table.append", "table.find_landing"} <= set(STEPS)


@pytest.mark.parametrize(
    ("fail_at", "decoded", "quarantined"),
    [
        ("tables.prepare:after:1", 0, 0),
        ("decoder.decode:before:1", 0, 0),
        ("typed.commit:before:1", 0, 0),
        ("typed.commit:after:1", 1, 0),
        ("quarantine.commit:before:1", 1, 0),
        ("quarantine.commit:after:1", 1, 1),
    ],
)
def test_a_decode_is_killed_at_its_commits(
    tmp_path: Path, fail_at: str, decoded: int, quarantined: int
) -> None:
    """The next decode completes it."""
    lake = home_typed_lake(tmp_path)
    lake.land_values([b"a", b"broken"])
    lake.broken = {1}
    folders = {
        "PYTHONPATH": f"{PROJECT}:{PROJECT}/include",
        "TIDEMARK_HOME": str(tmp_path),
        "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
    }
    ended = subprocess.run(
        [sys.executable, "-c", DECODE],
        env={**os.environ, **folders, VARIABLE: fail_at},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert kill_message(fail_at) in ended.stderr
    assert (len(lake.decoded()), len(lake.quarantined())) == (decoded, quarantined)
    lake.run()
    lake.check()


def test_the_selected_call_kills_the_process_despite_other_threads() -> None:
    """Plans of one job share a fail point."""
    code = """
import threading
from tidemark.local.failpoints import FailPoint

point, together = FailPoint("table.append:after:1"), threading.Barrier(2)
threads = [threading.Thread(target=point.call, args=(together.wait,)) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr

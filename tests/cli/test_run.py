"""`tidemark run` takes every step in one command, and continues a run that stopped at any point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.commands import Command
from tests.support.kafka_judge import read_ranges
from tests.support.transactions import Record, produce_records
from tidemark.app.app import App
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.local.failpoints import VARIABLE

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_SPEC = """
name: events
topic: {topic}
schedule: "@daily"
start: earliest
quality: {{suite: {suite}}}
decode:
  key: {{format: string}}
  value: {{format: json, schema: {{n: long}}}}
  upsert: {{deletes: hard}}
"""
_BARE = """
name: {name}
topic: {topic}
schedule: "@daily"
start: earliest
"""
_RULES: dict[str, Any] = {
    "name": "rules",
    "meta": {"tidemark": {"columns": {"n": "get_json_object(value_text, '$.n')"}}},
    "expectations": [
        {
            "type": "expect_column_values_to_not_be_null",
            "kwargs": {"column": "n"},
            "severity": "critical",
            "description": "every value has a number",
        }
    ],
}
_Produce = Callable[..., None]


@pytest.fixture
def produce(
    tmp_path: Path, broker: BrokerStatus, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> _Produce:
    """Return a function that produces records of pipeline `events`, valid or broken."""
    name = topic(partitions=2)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.yaml").write_text(_SPEC.format(topic=name, suite="rules"))
    project = tmp_path / "project"
    (project / "include" / "expectations").mkdir(parents=True)
    (project / "include" / "expectations" / "rules.json").write_text(json.dumps(_RULES))
    for each in ("jobs", ".tidemark"):
        (project / each).symlink_to(App.from_environment().layout.project / each)
    monkeypatch.setenv("TIDEMARK_PROJECT", str(project))

    def produce(count: int, *, value: str = '{{"n": {n}}}') -> None:
        keys = [b"k%d" % (n % 4) for n in range(count)]
        records = [
            Record(value=value.format(n=n).encode(), key=keys[n], partition=n % 2)
            for n in range(count)
        ]
        produce_records(broker.bootstrap, name, records)

    return produce


def rows(place: Path) -> list[dict[str, Any]]:
    """Return the rows of a table of this home."""
    return pa.table(DeltaTable(place).scan()).to_pylist()


def judge(home: Path, broker: BrokerStatus) -> int:
    """Compare all three tables with the records of librdkafka; return the number of records.

    The typed table and the upsert table have no record of a plan that is not published.
    """
    topic = App.from_environment().spec("events").topic
    records = read_ranges(broker.bootstrap, topic, dict.fromkeys((0, 1), (0, 10**9)))
    lakehouse = home / "lakehouse"
    bronze = [(r["partition"], r["offset"], r["value"]) for r in rows(lakehouse / "bronze/events")]
    assert sorted(bronze) == sorted((r.partition, r.offset, r.value) for r in records)
    visible = {
        (partition, offset)
        for each in App.from_environment().pipeline("events").publication.plans()
        if each.is_published
        for partition, spans in each.landing.spans().items()
        for span in spans
        for offset in range(span.start, span.end)
    }
    good = [
        r
        for r in records
        if (r.partition, r.offset) in visible and r.value and r.value.startswith(b"{")
    ]
    values = {(r.partition, r.offset): json.loads(r.value or b"")["n"] for r in good}
    typed = rows(lakehouse / "silver/events")
    assert {(r["partition"], r["offset"]): r["value"]["n"] for r in typed} == values
    assert len(typed) == len(values)
    newest = {(r.partition, (r.key or b"").decode()): r.offset for r in good}
    latest = rows(lakehouse / "silver/events_latest")
    assert {(r["partition"], r["key"]): r["offset"] for r in latest} == newest
    assert len(latest) == len(newest)
    return len(records)


def published_plans() -> list[bool]:
    """Return for each plan whether the published view contains it, oldest first."""
    return [
        each.is_published for each in App.from_environment().pipeline("events").publication.plans()
    ]


def steps(record: dict[str, Any]) -> list[str]:
    """Return the steps of a pipeline."""
    return [step["step"] for step in record["steps"]]


EVERY_STEP = ["ingest", "check", "decode", "upsert", "publish"]


def test_a_run_takes_every_step_once(
    tmp_path: Path, broker: BrokerStatus, produce: _Produce, tidemark: Command
) -> None:
    """A second run reports that it has nothing to do; the summary contains each step's result."""
    produce(10)
    (record,) = tidemark("run", "events", "--json").json
    assert steps(record) == EVERY_STEP
    assert record["steps"][-1]["published"] is True
    assert judge(tmp_path, broker) == 10
    (again,) = tidemark("run", "events", "--json").json
    assert (again["outcome"], again["plan"]) == ("nothing to do", None)
    produce(4)
    produce(1, value="broken")
    (draft,) = tidemark("run", "events", "--dry-run", "--json").json
    assert (draft["offsets"], draft["to_check"], draft["to_decode"], draft["to_merge"]) == (
        5,
        [],
        0,
        None,
    )
    shown = tidemark("run", "events")
    assert shown.code == ExitCode.QUALITY_FAILED
    assert judge(tmp_path, broker) == 15
    assert published_plans() == [True, False]
    assert "blocked" in shown.out
    assert "QualityFailed" in shown.err
    assert "nothing to do" in tidemark("run", "events").out


def test_later_steps_run_after_a_failed_check_which_is_not_repeated(
    tmp_path: Path, broker: BrokerStatus, produce: _Produce, tidemark: Command
) -> None:
    """A run checks plans that `ingest` landed; the next run does not check a blocked plan."""
    produce(3, value="broken")
    assert tidemark("ingest", "events").code == ExitCode.OK
    assert (
        "1 landed plan to check, 0 offsets to decode, 3 more after a check"
        in tidemark("run", "events", "--dry-run").out
    )
    failed = tidemark("run", "events", "--json")
    assert failed.code == ExitCode.QUALITY_FAILED
    assert steps(failed.json[0]) == ["check", "publish"]
    produce(2)
    (record,) = tidemark("run", "events", "--json").json
    assert steps(record) == EVERY_STEP
    assert published_plans() == [False, True]
    assert judge(tmp_path, broker) == 5


KILLED_AT = (
    "table.append:after:1",
    "results.append:before:1",
    "typed.commit:before:1",
    "merger.merge:after:1",
)
"""The landing of the plan, its check, its decode and its merge."""
KILLED_ELSEWHERE = (
    "control.append:after:1",
    "control.append:after:3",
    "typed.commit:after:1",
    "merger.merge:before:1",
)


@pytest.mark.faults
@pytest.mark.parametrize("points", [KILLED_AT, KILLED_ELSEWHERE])
@pytest.mark.usefixtures("tidemark")
def test_a_run_continues_where_the_previous_run_was_killed(
    tmp_path: Path,
    broker: BrokerStatus,
    produce: _Produce,
    tidemark: Command,
    points: Sequence[str],
) -> None:
    """Each killed run gets new records; in the end no record is lost, duplicated or unchecked."""
    program = [sys.executable, "-c", "from tidemark.cli import main; main()", "run", "events"]
    for point in points:
        produce(4)
        environ = {**os.environ, VARIABLE: point}
        killed = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, (point, killed.stdout, killed.stderr)
    done = tidemark("run", "events", "--json")
    assert done.code == ExitCode.OK, done.out
    assert judge(tmp_path, broker) == 4 * len(points)
    assert all(published_plans())
    assert "nothing to do" in tidemark("run", "events").out


def test_a_failed_pipeline_does_not_stop_the_others(
    tmp_path: Path, topic: TopicFactory, broker: BrokerStatus, tidemark: Command
) -> None:
    """The exit code is the worst one; no plan is made for a missing topic or an unknown name."""
    (tmp_path / "pipelines").mkdir()
    name = topic()
    produce_records(broker.bootstrap, name, [Record(value=b"1", partition=0)])
    for pipeline, read in (("good", name), ("away", f"{name}-away")):
        spec = tmp_path / "pipelines" / f"{pipeline}.yaml"
        spec.write_text(_BARE.format(name=pipeline, topic=read))
    ran = tidemark("run", "good", "away", "unknown", "--json")
    good, away, unknown = ran.json
    assert steps(good) == ["ingest", "check", "publish"]
    assert away["error"]
    assert unknown["error"] == "UnknownPipeline"
    assert ran.code != ExitCode.OK
    again = tidemark("run", "away", "good", "--json")
    assert [each["pipeline"] for each in again.json] == ["away", "good"]
    assert (again.json[1]["outcome"], again.code) == ("nothing to do", ran.code)


def test_a_run_by_spark_submit_is_one_application(
    tmp_path: Path, broker: BrokerStatus, produce: _Produce, by_submit: Command
) -> None:
    """The steps are those of a run on a server; the command prints lines of the job at once."""
    produce(10)
    ran = by_submit("run", "events", "--master", "local[2]", "--json")
    assert ran.code == ExitCode.OK, ran.err
    assert steps(ran.json[0]) == EVERY_STEP
    assert ran.err.splitlines()[0] == "engine: spark-submit, master local[2]"
    for step in EVERY_STEP:
        assert sum(f"pipeline=events step={step} " in line for line in ran.err.splitlines()) == 1
    assert judge(tmp_path, broker) == 10
    assert published_plans() == [True]

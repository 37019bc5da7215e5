"""Fields of log lines in the log of a task, which Airflow writes as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.airflow.conftest import Probe
from tests.airflow.test_job_operator import SECRET, environment, ingest
from tidemark.core.errors import ExitCode

JSON = {"TIDEMARK_LOG_FORMAT": "json"}
PRINTED = (
    'TIDEMARK_RESULT [{"pipeline": "prices", "plan": 7, "wrote": true}]',
    json.dumps(
        {
            "time": "2026-03-01T12:00:00.000+00:00",
            "level": "WARNING",
            "logger": "tidemark.bronze.ingest.recorder",
            "event": "landed",
            "pipeline": "prices",
            "plan": 7,
        }
    ),
    "26/03/01 12:00:00 WARN Utils: 50% of a=b",
    '{"a": 1}',
)


def task_log(probe: Probe, program: Path, extra: dict[str, str]) -> list[dict[str, Any]]:
    """Run the ingest task, whose job prints `PRINTED`; the lines of the task's log."""
    environ = environment(program, ExitCode.OK, "\n".join(PRINTED)) | extra
    answer = probe.ask("logged", environ=environ, **ingest())
    assert answer.value["error"] is None
    assert SECRET not in answer.printed
    return [json.loads(line) for line in answer.printed.splitlines()]


def test_lines_of_a_task_and_of_its_job_have_their_fields(
    task_probe: Probe, spark_submit: Path
) -> None:
    lines = task_log(task_probe, spark_submit, JSON)
    by_event = {each["event"]: each for each in lines}
    started = by_event["job started"]
    assert (started["level"], started["logger"]) == ("info", "tidemark.airflow.operators")
    assert (started["job"], started["plans"]) == ("ingest", "prices=7")
    landed = by_event["landed"]
    assert (landed["level"], landed["logger"]) == ("warning", "tidemark.bronze.ingest.recorder")
    assert (landed["pipeline"], landed["plan"]) == ("prices", 7)
    assert "time" not in landed
    assert "plan" not in started
    assert set(PRINTED[2:]) <= set(by_event)


def test_without_the_setting_each_line_is_a_text(task_probe: Probe, spark_submit: Path) -> None:
    events = [each["event"] for each in task_log(task_probe, spark_submit, {})]
    assert "job started job=ingest plans=prices=7" in events
    assert [each for each in events if each in PRINTED] == list(PRINTED[1:])


def test_an_unknown_format_fails_the_task(task_probe: Probe, spark_submit: Path) -> None:
    environ = environment(spark_submit, ExitCode.OK) | {"TIDEMARK_LOG_FORMAT": "xml"}
    answer = task_probe.ask("run_job", environ=environ, **ingest())
    assert answer.value["fails_now"]
    assert "The log format 'xml' does not exist." in answer.value["error"]
    assert not (spark_submit.parent / "argv").exists()

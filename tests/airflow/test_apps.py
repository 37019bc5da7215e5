"""A task builds one app, so its specs and connections are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import Probe
from tests.airflow.test_job_operator import RUN, environment

_RUN = {"pipelines": ["prices"], "requested_by": RUN}
_CHUNK = {"pipeline": "prices", "requested_by": RUN, "chunk": 1}
_FORM = {
    **dict.fromkeys(("from", "until", "plan", "partitions", "chunk", "reason")),
    **dict.fromkeys(("replace", "readable_only", "dry_run", "approved"), False),
    "select_by": "offset ranges",
    "offsets": "0:0-3",
}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "plan_run": ("call_task", _RUN),
    "ingest_run": ("emitted", {**_RUN, "emits": False}),
    "check_run": ("emitted", {**_RUN, "earlier": "null", "emits": False}),
    "decode_run": ("run_job", {"pipelines": ["prices"]}),
    "upsert_run": ("run_job", {"pipelines": ["prices"], "versions": "{}"}),
    "publish_run": ("published", {**_RUN, "alias": "prices"}),
    "has_left": ("call_task", _RUN),
    "request_backfill": (
        "call_task",
        {"pipeline": "prices", "requested_by": RUN, "params": _FORM},
    ),
    "ingest_chunk": ("run_job", _CHUNK),
    "check_chunk": ("run_job", _CHUNK),
    "publish_chunk": ("published", _CHUNK),
    "finish_backfill": (
        "call_task",
        {"pipeline": "prices", "requested_by": RUN, "chunks": [1]},
    ),
    "record_status_of_all": ("call_task", {}),
}
"""The question to the probe about each task, and the arguments of the task."""


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=() if task in ("plan_run", "ingest_run") else pytest.mark.slow)
        for task in TASKS
    ],
)
def test_a_task_builds_one_app(task_probe: Probe, spark_submit: Path, task: str) -> None:
    """Kafka does not answer, so some of these tasks fail."""
    environ = environment(spark_submit, code=0)
    environ["TIDEMARK_HOME"] = str(spark_submit.parent)
    call, arguments = TASKS[task]
    answer = task_probe.ask("apps_built", call=call, task=task, environ=environ, **arguments)
    assert answer.value["apps"] == 1, answer.value

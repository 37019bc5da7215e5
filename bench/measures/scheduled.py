"""A small run by a real Airflow, from the trigger to the published plan, on both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote

from bench.context import Context
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.quotes import PARTITIONS, PIPELINE, QuoteTopic
from tidemark.app.app import App
from tidemark.app.connections import SPARK_CONNECTION, connection_variable
from tidemark.local.airflow_api import AirflowApi

_DAG = f"tidemark_{PIPELINE}"
_SPARK_DEFAULT = connection_variable(SPARK_CONNECTION)
_BY_SUBMIT = json.dumps({"conn_type": "spark", "host": "local[2]"})
_Interval = tuple[datetime, datetime]


class _ScheduledRuns:
    """One pipeline, and a lakehouse and an Airflow for each side.

    Args:
        context: Context of the run; `records` is the number of new records per run.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._home = context.home / "scheduled"
        self._topic = QuoteTopic(context)

    def measured(self, side: str, repetition: int, *, on_server: bool) -> Metrics:
        """Start an Airflow, let it run the pipeline twice, and measure the second run."""
        specs = self._home / side / "pipelines"
        self._topic.write_spec(specs)
        environ = {
            **self._context.environ(self._home / side / "lakehouse", specs),
            "TIDEMARK_HOME": str(self._home / side / "home"),
            **({} if on_server else {_SPARK_DEFAULT: _BY_SUBMIT}),
        }
        app = App.from_environment(environ)
        server, airflow = app.engines.server(), app.airflow()
        try:
            if on_server:
                server.start(app.engines.check_requirements)
                airflow = app.airflow()
            airflow.start()
            api = airflow.api()
            api.wait_for_dags([_DAG])
            api.set_paused(_DAG, False)
            # The schedule `@once` is the first run.
            self._topic.feed()
            api.wait(_DAG, api.wait_for_run(_DAG))
            self._topic.feed()
            metrics = self._run(api, f"bench_{repetition}_{self._topic.total}")
        finally:
            airflow.stop()
            server.stop()
        return {**metrics, **self._topic.check_lakehouse(self._home / side / "lakehouse")}

    def _run(self, api: AirflowApi, run_id: str) -> dict[str, float]:
        triggered = datetime.now(UTC)
        api.trigger(_DAG, run_id=run_id)
        run = api.wait(_DAG, run_id)
        if run.state != "success":
            raise RuntimeError(f"the run {run_id} ended as {run.state}: {run.tasks}")
        path = f"/dags/{quote(_DAG)}/dagRuns/{quote(run_id)}/taskInstances"
        tasks = api.call("GET", path, query={"limit": 100})["task_instances"]
        ran = {task["task_id"]: _interval(task) for task in tasks if task["end_date"]}
        published = ran["publish"][1]
        before = [each for each in ran.values() if each[0] < published]
        in_tasks = covered([(begin, min(end, published)) for begin, end in before])
        seconds = (published - triggered).total_seconds()
        return {
            "seconds": seconds,
            "task_seconds": in_tasks,
            "airflow_seconds": seconds - in_tasks,
            "whole_run_seconds": (max(end for _, end in ran.values()) - triggered).total_seconds(),
        }


def _interval(task: Mapping[str, Any]) -> _Interval:
    """Return the start and the end of a task."""
    return datetime.fromisoformat(task["start_date"]), datetime.fromisoformat(task["end_date"])


def covered(intervals: Sequence[_Interval]) -> float:
    """Return the number of seconds that at least one of the intervals covers."""
    total, reached = 0.0, None
    for begin, end in sorted(intervals):
        start = begin if reached is None else max(begin, reached)
        total += max(0.0, (end - start).total_seconds())
        reached = end if reached is None else max(reached, end)
    return total


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    runs = _ScheduledRuns(context)
    yield Setup(
        sides=[
            Side(
                name="server",
                what="the DAG of a pipeline with tasks on a Spark Connect server",
                run=partial(runs.measured, "server", on_server=True),
            ),
            Side(
                name="submit",
                what="the same with a spark-submit for each job",
                run=partial(runs.measured, "submit", on_server=False),
            ),
        ],
        data={
            "new_records": context.records,
            "partitions": PARTITIONS,
            "tables": "bronze, typed, upsert; a suite of five rules",
            "seconds": "from the trigger to the end of the task publish",
            "task_seconds": "of them, while a task ran",
            "airflow_seconds": "of them, while no task ran",
        },
    )


BENCHMARKS = [
    Benchmark(
        name="scheduled",
        title="A small run by a real Airflow, from the trigger to the published plan",
        ratios=[
            Ratio(over="server", under="submit", metric="seconds"),
            Ratio(over="server", under="submit", metric="task_seconds"),
            Ratio(over="server", under="submit", metric="whole_run_seconds"),
        ],
        open=_open,
        records=1_000,
        full_records=1_000,
        repetitions=1,
        full_repetitions=3,
        in_short_form=False,
    ),
]

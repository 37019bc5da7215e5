"""Plans of a run that Airflow's backfill takes over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.airflow.conftest import SPARK, Probe
from tests.conftest import TopicFactory
from tests.support.file_lake import FileSink
from tests.support.transactions import produce_months
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.core.origins import RunOrigin
from tidemark.local.broker import BrokerStatus
from tidemark.spark.sessions import ApplicationSessions

DAG, RUN = "tidemark_tides", "scheduled__2025-07-01T00:00:00+00:00"
JUNE = {"start": "2025-06-01T00:00:00+00:00", "end": "2025-07-01T00:00:00+00:00"}
"""The data interval of the run."""


class NoSpark(ApplicationSessions):
    """Sessions for work that must not open Spark."""

    def shared(self) -> NoReturn:
        pytest.fail("the pipeline opened Spark")


class Tides:
    """A pipeline over a real topic, which starts in July; it lands without Spark."""

    def __init__(self, probe: Probe, home: Path, bootstrap: str, topic: str) -> None:
        self._probe = probe
        specs = home / "pipelines"
        specs.mkdir()
        (specs / "tides.yaml").write_text(
            f"name: tides\ntopic: {topic}\nschedule: '@monthly'\n"
            "start: {timestamp: 2025-07-01T00:00:00Z}\n"
        )
        self._environ = {
            "TIDEMARK_HOME": str(home),
            "TIDEMARK_PIPELINES": str(specs),
            connection_variable("kafka_default"): kafka_connection(bootstrap),
            connection_variable("spark_default"): json.dumps(SPARK),
        }
        self._app = App(environ=self._environ, sessions=NoSpark())
        self._uri = self._app.layout.data_table("bronze/tides")

    def plan(self, run_type: str) -> int | None:
        """Call the task `plan` of the run, as a run of this type; return the number of its plan."""
        asked_by = self._probe.ask("requester", dag_id=DAG, run_id=RUN, run_type=run_type).value
        answer = self._probe.ask(
            "call_task",
            task="plan_run",
            environ=self._environ,
            pipelines=["tides"],
            requested_by=asked_by,
            dag_run={"run_type": run_type, **JUNE},
        ).value
        assert answer == {"error": None, "result": True}
        return self._app.control.summary("tides").plan_requested_by(RunOrigin(asked_by))

    def land(self, plan: int) -> bool:
        """Execute a plan, and return whether it wrote rows. A landed plan needs no sink."""
        pipeline = self._app.pipeline("tides")
        if self._app.control.ledger("tides").plans[plan].has_landed:
            return pipeline.ingest(plan).wrote
        sink = FileSink(Path(self._uri), pipeline.adapters.log_reader)
        ingest = replace(pipeline.bronze.executor, sink=sink)
        return ingest.execute(plan).wrote

    def planned(self) -> dict[int, list[tuple[int, int, int]]]:
        """Return the ranges of every plan."""
        plans = self._app.control.ledger("tides").plans
        return {
            number: [(each.partition, each.start, each.end) for each in record.plan.ranges]
            for number, record in plans.items()
        }

    def rows(self) -> Sequence[tuple[int, int]]:
        """Return partition and offset of every row, with duplicates."""
        found = pa.table(DeltaTable(self._uri).scan()).to_pylist()
        return sorted((row["partition"], row["offset"]) for row in found)


@pytest.mark.broker
def test_a_reprocessed_interval_lands_once(
    task_probe: Probe, tmp_path: Path, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """`--reprocess-behavior completed` reuses the id of a run.

    The run then has a second plan, for its interval, which is made once.
    """
    name = topic(partitions=2, config={"retention.ms": "-1"})
    produce_months(broker.bootstrap, name, {5: 4, 6: 6, 7: 3})
    tides = Tides(task_probe, tmp_path, broker.bootstrap, name)
    scheduled, by_date = 1, 2
    both = {1: [(0, 10, 13), (1, 10, 13)], 2: [(0, 4, 10), (1, 4, 10)]}

    assert tides.plan("scheduled") == scheduled
    # The run fails before its plan has landed, and a backfill takes it over.
    assert tides.plan("backfill") == by_date
    assert tides.planned() == both
    assert tides.plan("backfill") == by_date
    assert tides.land(2) is True

    assert tides.plan("backfill") == by_date
    assert tides.land(2) is False
    assert tides.plan("scheduled") == scheduled
    assert tides.land(1) is True
    assert tides.planned() == both
    assert tides.rows() == [(p, offset) for p in (0, 1) for offset in range(4, 13)]

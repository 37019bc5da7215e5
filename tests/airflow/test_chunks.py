"""The operator of a backfill's chunks, with a real process instead of spark-submit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow.conftest import Answer, Probe, submit_environ
from tests.airflow.test_job_operator import KAFKA
from tests.support.plans import append_events, make_plan
from tidemark.app.app import App
from tidemark.core.accounting import Landing
from tidemark.core.errors import ExitCode
from tidemark.core.events import BackfillRequested, Landed, Planned
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import ChunkOrigin
from tidemark.core.plan import PlanKind

RUN = "airflow:tidemark_backfill:manual__1"


class Chunks:
    """A backfill of `prices` in some chunks, with a control table and no Kafka."""

    def __init__(self, probe: Probe, program: Path) -> None:
        self._probe = probe
        self._program = program
        self._environ = {
            "TIDEMARK_HOME": str(program.parent),
            **submit_environ(program),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(KAFKA),
            "SEEN": str(program.parent),
            "OUTPUT": "",
        }

    def record_request(self) -> None:
        """Record a request of two chunks."""
        control = App(environ=self._environ).control
        request = BackfillRequested(
            cluster_id="memory",
            topic="prices",
            topic_id="id-1",
            requested_by=RUN,
            readable_only=False,
            chunks=tuple({0: SpanSet((Span(n, n + 5),))} for n in (10, 20)),
        )
        append_events(control, "prices", request)

    def record_plan(self, sequence: int, origin: ChunkOrigin, *, landed: bool = False) -> None:
        """Record a backfill's plan."""
        control = App(environ=self._environ).control
        plan = make_plan(
            (0, 10 * sequence, 10 * sequence + 5),
            pipeline="prices",
            sequence=sequence,
            origin=origin,
            kind=PlanKind.BACKFILL,
        )
        append_events(control, "prices", Planned(plan=plan))
        if landed:
            event = Landed(plan=plan, landing=Landing.of(plan, 1, {0: 5}), committed={0: 0})
            append_events(control, "prices", event)

    def run(self, job: str, chunk: int, code: int = ExitCode.REFUSED) -> Answer:
        """Run the operator of a chunk; every job ends with this code."""
        return self._probe.ask(
            "run_job",
            environ={**self._environ, "CODE": str(int(code))},
            task=f"{job}_chunk",
            pipeline="prices",
            requested_by=RUN,
            chunk=chunk,
        )

    def submitted_plans(self) -> list[str]:
        """Return the plans of the submitted jobs."""
        file = self._program.parent / "argv"
        words = file.read_text().splitlines() if file.exists() else []
        return [word for word in words if word.startswith("prices=")]


@pytest.fixture
def chunks(task_probe: Probe, spark_submit: Path) -> Chunks:
    """A backfill of this test's own."""
    return Chunks(task_probe, spark_submit)


@pytest.mark.slow
def test_a_check_uses_the_landed_plan_of_its_chunk_and_plans_nothing(chunks: Chunks) -> None:
    """A task that is cleared after its plan was abandoned must leave no open plan."""
    chunks.record_plan(1, ChunkOrigin(RUN, 1), landed=True)
    chunks.record_plan(2, ChunkOrigin(RUN, 2), landed=True)
    chunks.run("check", 2)
    assert chunks.submitted_plans() == ["prices=2"]
    assert chunks.run("check", 3).value["kind"] == "AirflowSkipException"


@pytest.mark.slow
def test_a_check_includes_the_plan_whose_missed_records_a_later_plan_landed(
    chunks: Chunks,
) -> None:
    """Otherwise its rows stay hidden."""
    for sequence in (1, 2):
        chunks.record_plan(sequence, ChunkOrigin(RUN, 1), landed=True)
    chunks.run("check", 1)
    assert chunks.submitted_plans() == ["prices=1", "prices=2"]


def test_an_open_chunk_lands_before_the_next_chunk(chunks: Chunks) -> None:
    """A chunk that waits for its retry does not block the others."""
    chunks.record_plan(1, ChunkOrigin(RUN, 1))
    answer = chunks.run("ingest", 2)
    assert chunks.submitted_plans() == ["prices=1"]
    assert answer.value["fails_now"] is True


def test_after_another_open_chunk_the_task_lands_its_own(chunks: Chunks) -> None:
    """One task runs two jobs."""
    chunks.record_request()
    chunks.record_plan(1, ChunkOrigin(RUN, 1))
    chunks.record_plan(2, ChunkOrigin(RUN, 2))
    answer = chunks.run("ingest", 2, ExitCode.OK)
    assert (answer.value["error"], chunks.submitted_plans()) == (None, ["prices=2"])


def test_the_open_plan_of_another_backfill_is_not_submitted(chunks: Chunks) -> None:
    """The task waits for it."""
    chunks.record_plan(1, ChunkOrigin("cli:ann:1", 1))
    chunks.run("ingest", 2)
    assert chunks.submitted_plans() == []

"""Operators that run jobs on Spark."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from tidemark.airflow.connections import (
    checked_engine,
    connected_app,
    kafka_environment,
    registry_environment,
)
from tidemark.airflow.failures import airflow_failures, job_failure, pipelines_failure
from tidemark.airflow.tasks import plan_of_chunk
from tidemark.app import App
from tidemark.connections import SPARK_CONNECTION
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.plan import PlanKind, PlanRef
from tidemark.ingest.parallel import PLANNING_THREADS, map_in_threads
from tidemark.run import Ref, run, tables_of
from tidemark.spark.engine import Engine, Stop
from tidemark.spec.ref import MergeRef
from tidemark.spec.upsert import MergePlan

log = logging.getLogger(__name__)

_LAST_LINES = 20
"""Number of output lines in the error of a task whose job reports no named error."""


class JobOperator(BaseOperator):
    """Runs a job for the plans that `plans` returns when the task runs.

    The type of the Spark connection decides where the job runs: `spark` means spark-submit, and
    `spark_connect` means a session on a server, in this process. The task builds settings and
    credentials when it runs, so Airflow's database contains neither.

    Args:
        job: Name of the job: `ingest`, `quality` or `upsert`.
        spark_connection: Airflow connection id of Spark.
    """

    ui_color = "#e8f1f8"

    def __init__(
        self, *, job: str, spark_connection: str = SPARK_CONNECTION, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.spark_connection = spark_connection
        self._stop = Stop()
        self._checked: Engine | None = None

    def plans(self) -> list[PlanRef]:
        """Return the plans of the job. Their pipelines have the same Spark settings."""
        raise NotImplementedError

    def execute(self, context: Context) -> None:  # noqa: ARG002  the signature is Airflow's
        """Run the job and wait for it; skip the job if there are no plans.

        Raises:
            AirflowFailException: A retry would fail again, or the quality suite failed.
            AirflowException: A retry can end differently.
        """
        with airflow_failures():
            plans = self.plans()
            if plans:
                self._run(plans)

    def on_kill(self) -> None:
        """End the job; Spark commits nothing for it afterwards."""
        self._stop()

    def _engine(self, *pipelines: str) -> Engine:
        """Return the engine, checked once per task before the task records a plan or runs a job."""
        self._stop.check()
        if self._checked is None:
            with airflow_failures():
                self._checked = checked_engine(*pipelines, spark_connection=self.spark_connection)
            log.info("engine=%s", self._checked)
        return self._checked

    def _run(self, plans: list[Ref]) -> None:
        pipelines = tables_of(plans)
        engine = self._engine(*pipelines)
        app = App.from_environment(extra=kafka_environment(*pipelines))
        log.info("job=%s plans=%s", self.job, ", ".join(map(str, plans)))
        last: deque[str] = deque(maxlen=_LAST_LINES)

        def say(line: str) -> None:
            log.info("%s", line)
            last.append(line)

        with airflow_failures():
            done = run(app, engine, self.job, plans, say, self._stop)
        if done.exit_code != ExitCode.OK:
            raise job_failure(done, "\n".join(last))


class TidemarkJobOperator(JobOperator):
    """Runs a job for one plan of one pipeline.

    Args:
        job: Name of the job.
        pipeline: Pipeline name (templated).
        plan: Plan number (templated).
    """

    template_fields: Sequence[str] = ("pipeline", "plan")

    def __init__(self, *, job: str, pipeline: str, plan: str, **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)
        self.pipeline = pipeline
        self.plan = plan

    def plans(self) -> list[PlanRef]:
        """Return the plan of the arguments."""
        return [PlanRef(pipeline=self.pipeline, sequence=int(self.plan))]


class DecodeOperator(JobOperator):
    """Decodes landed records of pipelines, plan by plan, until none are left.

    Args:
        pipelines: Pipelines with the same Spark settings that have typed tables.
    """

    template_fields: Sequence[str] = ("pipelines",)

    def __init__(self, *, pipelines: Sequence[str], **kwargs: Any) -> None:
        super().__init__(job="decode", **kwargs)
        self.pipelines = list(pipelines)

    def execute(self, context: Context) -> None:  # noqa: ARG002  the signature is Airflow's
        """Run jobs until all records are decoded; a refused pipeline does not stop the others.

        Raises:
            AirflowFailException, AirflowException: As for other jobs, after the others.
        """
        left = list(self.pipelines)
        self._engine(*left)
        refused: dict[str, TidemarkError] = {}
        failed: list[AirflowException] = []
        seen: set[PlanRef] = set()
        while left:
            answers = map_in_threads(left, _next_to_decode, PLANNING_THREADS)
            asked = dict(zip(left, answers, strict=True))
            refused |= {p: each for p, each in asked.items() if isinstance(each, TidemarkError)}
            plans = {p: each for p, each in asked.items() if isinstance(each, PlanRef)}
            stuck = sorted(str(plan) for plan in plans.values() if plan in seen)
            if stuck:
                failed.append(AirflowException(f"still open after execution: {', '.join(stuck)}"))
            left = [pipeline for pipeline, plan in plans.items() if plan not in seen]
            new = [plans[pipeline] for pipeline in left]
            seen |= set(new)
            try:
                if new:
                    self._run(new)
            except AirflowException as failure:
                # The message names each failed plan. The other plans have landed.
                failed.append(failure)
                left = [p for p in left if not _is_open(plans[p])]
        if failed:
            raise failed[0]
        if refused:
            raise pipelines_failure(refused)


class UpsertOperator(JobOperator):
    """Brings upsert tables up to date; starts no Spark if they are.

    Args:
        pipelines: Pipelines with the same Spark settings that have upsert tables.
    """

    template_fields: Sequence[str] = ("pipelines",)

    def __init__(self, *, pipelines: Sequence[str], **kwargs: Any) -> None:
        super().__init__(job="upsert", **kwargs)
        self.pipelines = list(pipelines)

    def execute(self, context: Context) -> None:  # noqa: ARG002  the signature is Airflow's
        """Run a job for outdated upsert tables; a refused pipeline does not stop the others.

        Raises:
            AirflowFailException, AirflowException: As for other jobs, after the others.
        """
        app = App.from_environment()
        with airflow_failures():
            found = map_in_threads(
                self.pipelines, lambda name: app.pipeline(name).upserts.next(), PLANNING_THREADS
            )
        asked = dict(zip(self.pipelines, found, strict=True))
        refused = {name: each for name, each in asked.items() if isinstance(each, TidemarkError)}
        behind = [
            MergeRef(pipeline=name, version=merge.version)
            for name, merge in asked.items()
            if isinstance(merge, MergePlan)
        ]
        if behind:
            self._run(behind)
        if refused:
            raise pipelines_failure(refused)


def _is_open(plan: PlanRef) -> bool:
    record = App.from_environment().control.plan_record(plan.pipeline, plan.sequence)
    return record is None or record.is_open


def _next_to_decode(pipeline: str) -> PlanRef | None:
    # Spark needs no registry: the plan refers to stored schemas.
    app = App.from_environment(extra=registry_environment(pipeline))
    plan = app.pipeline(pipeline).decoder.plan().plan
    if plan:
        log.info("%s", plan.explain())
    return plan.ref if plan else None


class ChunkJobOperator(JobOperator):
    """Runs a job for one chunk of a backfill: plans the chunk first, or finds its recorded plan.

    Args:
        job: `ingest`, or `quality` for the landed chunk.
        pipeline: Pipeline name (templated).
        requested_by: The run that requested the backfill (templated).
        chunk: Number of the chunk, from 1.
    """

    template_fields: Sequence[str] = ("pipeline", "requested_by", "chunk")

    def __init__(
        self, *, job: str, pipeline: str, requested_by: str, chunk: int, **kwargs: Any
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.pipeline = pipeline
        self.requested_by = requested_by
        self.chunk = chunk

    def execute(self, context: Context) -> None:
        """Run the job and wait for it; run it first for an unfinished chunk.

        Raises:
            AirflowSkipException: The chunk has no plan for the job.
            AirflowException: As for other jobs.
        """
        self._engine(self.pipeline)
        with airflow_failures():
            if self.job == "ingest" and (left := self._left_open()):
                log.info("chunk %s is open and lands first", left)
                self._run([left])
        super().execute(context)

    def plans(self) -> list[PlanRef]:
        """Return the plan of the chunk; an empty list for an ingest that has landed.

        Raises:
            AirflowSkipException: All offsets of the chunk are landed or planned.
        """
        from tidemark.ingest.recorder import recorded_plan

        app = connected_app(self.pipeline)
        if self.job == "quality":
            number = plan_of_chunk(self.pipeline, self.requested_by, self.chunk)
        else:
            plan = (
                app.pipeline(self.pipeline).backfills.plan_chunk(self.requested_by, self.chunk).plan
            )
            number = plan.sequence if plan else None
        if number is None:
            raise AirflowSkipException(f"no offset of chunk {self.chunk} is left")
        record = recorded_plan(app.control, self.pipeline, number)
        log.info("chunk %d\n%s", self.chunk, record.plan.explain())
        is_done = self.job == "ingest" and record.held_now is not None
        return [] if is_done else [record.plan.ref]

    def _left_open(self) -> PlanRef | None:
        """Return the open plan of another chunk of this backfill; None without one."""
        from tidemark.backfill.selection import chunk_requester, is_chunk_of

        ledger = App.from_environment().control.summary(self.pipeline)
        record = ledger.open_plan(PlanKind.BACKFILL)
        own = chunk_requester(self.requested_by, self.chunk)
        if record is None or record.plan.requested_by == own:
            return None
        is_ours = is_chunk_of(self.requested_by, record.plan.requested_by)
        return record.plan.ref if is_ours else None

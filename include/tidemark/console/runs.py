"""The page of a DAG run: the plans that the run requested, or the chunks of its backfill."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from starlette.exceptions import HTTPException

from tidemark.console.backfills import RecordedBackfill, recorded_backfill
from tidemark.console.context import Page, PageContext
from tidemark.console.guard import AirflowRun
from tidemark.core.errors import TidemarkError
from tidemark.core.origins import ChunkOrigin, RunOrigin, parse_origin
from tidemark.core.parallel import PLANNING_THREADS, map_in_threads
from tidemark.core.plan_history import PlanEntry, PlanState
from tidemark.quality.check_results import CheckedPlan, CheckResult
from tidemark.quality.publication import PublicationDecision, PublicationStatus

BACKFILL_DAG = "tidemark_backfill"
"""The DAG whose form requests backfills."""
RANGES = 20
"""Ranges of a plan on the page; the page of the plan has all."""
_BY_DATE = ":by-date"
_REQUESTER = re.compile(r"airflow:([^:]+):(.+)", re.DOTALL)


def requesters(dag_id: str, run_id: str) -> Sequence[str]:
    """Return the requesters of the plans of a run: of the run itself, and of `airflow backfill`.

    The template `REQUESTED_BY` of the DAGs creates the same texts.
    """
    run = f"airflow:{dag_id}:{run_id}"
    return run, f"{run}{_BY_DATE}"


def run_of(requester: str) -> tuple[str, str] | None:
    """Return DAG id and run id of a requester; None for requesters other than DAG runs."""
    origin = parse_origin(requester)
    found = _REQUESTER.fullmatch(origin.requester if isinstance(origin, ChunkOrigin) else requester)
    return (found[1], found[2].removesuffix(_BY_DATE)) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A plan that a run requested or took over.

    Attributes:
        name: The pipeline.
        entry: The plan and its events.
        checked: Results of its newest check; None without one.
        decision: The effective publication decision; None without one.
        observed: Returns what a check observed, by the rights of the viewer.
    """

    name: str
    entry: PlanEntry
    checked: CheckedPlan | None
    decision: PublicationDecision | None
    observed: Callable[[CheckResult], str]

    @property
    def has_rows(self) -> bool:
        """Whether the table has rows of the plan now."""
        held = self.entry.record.held_now
        return bool(held and held.counts)

    @property
    def failed(self) -> Sequence[CheckResult]:
        """Failed rules of the newest check."""
        return [each for each in self.checked.results if not each.passed] if self.checked else ()

    @property
    def is_blocked(self) -> bool:
        """Whether a failed check hides the rows of the plan."""
        status = self.decision.status if self.decision else None
        return self.has_rows and status is PublicationStatus.BLOCKED

    @property
    def needs_attention(self) -> bool:
        """Whether the run has left work: the plan is open, unchecked or blocked."""
        is_unchecked = self.has_rows and self.decision is None
        return self.entry.state is PlanState.OPEN or is_unchecked or self.is_blocked


def page(context: PageContext, dag_id: str, run_id: str) -> Page:
    """The plans that a DAG run requested; for the DAG of backfills, the request and its chunks."""
    run = context.viewer.airflow_run(dag_id, run_id)

    def task_link(task_id: str) -> str | None:
        if context.airflow is None:
            return None
        parts = ("dags", dag_id, "runs", run_id, "tasks", task_id)
        return "/".join([context.airflow, *(quote(part, safe="") for part in parts)])

    common = {"dag_id": dag_id, "run_id": run_id, "run": run, "task_link": task_link}
    if dag_id == BACKFILL_DAG:
        name, backfill = _backfill(context, run, requesters(dag_id, run_id)[0])
        return context.page("backfill_run.html", name=name, backfill=backfill, **common)
    names = list(context.specs_of_dag(dag_id))
    if not names:
        raise HTTPException(404, "This DAG has no pipeline that you may see.")
    asked = requesters(dag_id, run_id)
    found = map_in_threads(names, lambda name: _plans(context, name, asked), PLANNING_THREADS)
    by_name = dict(zip(names, found, strict=True))
    plans = [plan for each in found if not isinstance(each, TidemarkError) for plan in each]
    return context.page(
        "run.html",
        plans=sorted(plans, key=lambda plan: not plan.needs_attention),
        without=[name for name, each in by_name.items() if each == []],
        errors={name: each for name, each in by_name.items() if isinstance(each, TidemarkError)},
        most=RANGES,
        own=asked,
        **common,
    )


def _plans(context: PageContext, name: str, asked: Sequence[str]) -> list[RunPlan]:
    """Return the plans of a pipeline that a run requested, newest first."""
    pipeline = context.pipeline(name)
    ledger = pipeline.control.summary(name)
    # `plan_requested_by` leaves out plans that were abandoned or undone.
    numbers = {
        number
        for number, record in ledger.plans.items()
        if not set(asked).isdisjoint(record.requesters)
    }
    current = (ledger.plan_requested_by(RunOrigin(each)) for each in asked)
    numbers |= {number for number in current if number is not None}
    plans = []
    for number in sorted(numbers, reverse=True):
        (entry,) = pipeline.control.plan_history(name, number, number + 1)
        checked = pipeline.check_results.checked(name, [number])
        plans.append(
            RunPlan(
                name=name,
                entry=entry,
                checked=checked[0] if checked else None,
                decision=pipeline.publication.decision(number),
                observed=context.observed(pipeline),
            )
        )
    return plans


def _backfill(
    context: PageContext, run: AirflowRun | None, requester: str
) -> tuple[str, RecordedBackfill] | tuple[None, None]:
    """Return the table and the backfill of a run; None if no visible pipeline has the request."""
    for name in _tables(context, run):
        requests = context.home.app.control.backfills(name, requester)
        if requests:
            return name, recorded_backfill(context.pipeline(name), requests[0])
    return None, None


def _tables(context: PageContext, run: AirflowRun | None) -> Sequence[str]:
    """Return the tables that can have the request: the one of the form, or all bronze tables."""
    chosen = run.conf.get("pipeline") if run else None
    if chosen is None:
        return list(context.specs)
    spec = context.home.app.specs.get(str(chosen))
    if spec is None or not context.viewer.may_see(spec):
        return []
    copy = run.conf.get("into") if run else None
    return [f"{spec.name}@{copy}" if copy else spec.name]

"""Requests of each step to an object store. The limits do not depend on the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from bench.measures.requests import TARGETS

from tests.support.request_counts import Request, RequestCounter, request_of
from tests.support.request_steps import (
    PLACES,
    STEPS,
    StepCost,
    counted_home,
    measure_run,
    measure_steps,
)
from tests.support.store_home import StoreHome

Measure = Callable[
    [StoreHome, RequestCounter, Callable[[str], None]],
    Mapping[str, StepCost],
]

LIMITS: Mapping[str, int] = {
    "first_plan": 34,
    "plan_of_nothing": 2,
    "idle_run": 9,
    "status": 13,
    "plan": 7,
    "ingest": 33,
    "check": 29,
    "first_run": 199,
    "run": 128,
}
"""Maximum requests of each step. Lower a limit if its step needs fewer; never raise a limit."""


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/lake/x/bronze/t/_delta_log/_last_checkpoint", "bronze _last_checkpoint GET"),
        ("GET", "/lake/x/bronze/t/_delta_log/00000000000000000007.json", "bronze log GET"),
        ("PUT", "/lake/x/control/offset_ranges/_delta_log/7.json", "control log PUT"),
        ("GET", "/lake/x/silver/t/_delta_log/7.checkpoint.parquet", "typed checkpoint GET"),
        (
            "GET",
            "/lake?list-type=2&prefix=x%2Fsilver%2Ft_latest%2F_delta_log%2F",
            "upsert log LIST",
        ),
        ("GET", "/lake?list-type=2&prefix=x/quality/results", "results data LIST"),
        ("HEAD", "/lake/x/silver/t_quarantine/plan=1/part-0.parquet", "quarantine data HEAD"),
        ("POST", "/lake?delete", "other data POST"),
    ],
)
def test_a_request_has_a_table_and_a_kind(method: str, target: str, expected: str) -> None:
    table, _, kind = expected.partition(" ")
    assert request_of(method, target) == Request(table, kind)


@pytest.mark.store
@pytest.mark.parametrize(
    "measure", [measure_steps, pytest.param(measure_run, marks=pytest.mark.slow)]
)
def test_no_step_makes_more_requests_than_its_limit(measure: Measure, tmp_path: Path) -> None:
    with counted_home(tmp_path) as (home, counter):
        home.prepare(*PLACES)
        costs = measure(home, counter, home.place)
    counts = {step: cost.requests.total() for step, cost in costs.items()}
    above = {step: count for step, count in counts.items() if count > LIMITS[step]}
    assert above == {}, "\n".join(f"{step}: {costs[step].requests}" for step in above)


def test_every_step_has_a_limit_and_each_step_with_copies_a_target() -> None:
    assert set(LIMITS) == set(STEPS)
    assert set(TARGETS) == {step for step in STEPS if not step.startswith("first_")}

"""Steps whose object store refuses all requests from some moment on, or loses an answer.

The store answers 403 to each request, as when a role is withdrawn or a token expires. In other
tests, the store executes a commit, and the connection ends without an answer. Afterwards, the same
command completes, or has nothing left to do. If a plan is still open, `ingest` completes it. Kafka
is in memory, and PyArrow and delta-rs replace Spark (tests/support/store_home.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.request_counts import RequestCounter, Requests, commits_of
from tests.support.request_steps import counted_home
from tests.support.store_home import NEXT_PLAN, PIPELINE, StoreHome
from tidemark.core.errors import ExitCode

pytestmark = [pytest.mark.store, pytest.mark.faults]

POINTS = 4
"""Number of points of a step at which the refusal begins, evenly spaced from its first request."""
COMMITS = 10
"""Number of copies of the tables for each step. No step makes more commits."""
WHY = ("--reason", "a test")


def nothing(_: StoreHome) -> None:
    """Leave the tables as `StoreHome.prepare` made them."""


def new_records(home: StoreHome) -> None:
    home.produce(30)


def open_plan(home: StoreHome) -> None:
    home.produce(30)
    home.command("plan", PIPELINE)


def restored_bronze(home: StoreHome) -> None:
    """Land a plan, and restore the data table to the version before it."""
    home.produce(30)
    uri = f"{home.lakehouse}/bronze/{PIPELINE}"
    before = DeltaTable(uri).version()
    home.command("run", PIPELINE)
    DeltaTable(uri).restore(before)


Prepare = Callable[[StoreHome], None]
STEPS: dict[str, tuple[Prepare, Sequence[str]]] = {
    "run": (new_records, ("run", PIPELINE)),
    "undo": (nothing, ("undo", PIPELINE, "--plan", "2", *WHY)),
    "replacement": (
        nothing,
        ("backfill", PIPELINE, "--offsets", "1:2-7", "--replace", *WHY),
    ),
    "abandon": (open_plan, ("abandon", PIPELINE, "--plan", str(NEXT_PLAN), *WHY)),
    "rewind": (restored_bronze, ("rewind", PIPELINE, *WHY)),
    "rejection": (nothing, ("publication", "reject", PIPELINE, "--plan", "2", *WHY)),
    "decode from scratch": (nothing, ("decode", PIPELINE, "--from-scratch", *WHY)),
    "maintenance": (nothing, ("maintain", PIPELINE)),
}


@dataclass(frozen=True)
class Prepared:
    """A home with prepared tables, and the result of each undisturbed step.

    Attributes:
        home: The home.
        counter: The proxy in front of the store.
        ends: The requests and the final state of each step.
    """

    home: StoreHome
    counter: RequestCounter
    ends: dict[str, tuple[Requests, State]] = field(default_factory=dict)

    def undisturbed(self, step: str) -> tuple[Requests, State]:
        """Return the requests of a step, and the state after the step and a run."""
        if step not in self.ends:
            prepare, words = STEPS[step]
            self.home.place(_place(step, "undisturbed"))
            prepare(self.home)
            self.counter.take()
            self.home.command(*words)
            requests = self.counter.take()
            self.ends[step] = requests, state(self.home)
        return self.ends[step]


def _place(step: str, point: str) -> str:
    return f"{step.replace(' ', '-')}-{point}"


class State(NamedTuple):
    """The tables after a step and a run of the pipeline.

    Attributes:
        rows: Partition, offset and plan of each row, by table.
        status: The state of the pipeline.
        events: The number of rows of the control table, and the kinds of all events.
        results: Plan and check of each check result.
    """

    rows: dict[str, list[tuple[int, int, int]]]
    status: list[str]
    events: tuple[int, list[str]]
    results: list[tuple[int, str]]


def state(home: StoreHome) -> State:
    """Run the pipeline, and return the state of its tables."""
    home.command("run", PIPELINE)
    rows = {
        table: sorted(
            (row["partition"], row["offset"], row["plan_sequence"])
            for row in pa.table(DeltaTable(f"{home.lakehouse}/{table}").scan()).to_pylist()
        )
        for table in (f"bronze/{PIPELINE}", f"silver/{PIPELINE}", f"silver/{PIPELINE}_latest")
    }
    # An event has a row for each of its ranges.
    ranges = pa.table(DeltaTable(f"{home.lakehouse}/control/offset_ranges").scan()).to_pylist()
    kinds = {each["event_number"]: each["event"] for each in ranges}
    assert sorted(kinds) == [*range(1, len(kinds) + 1)]
    results = sorted(
        (each["plan_sequence"], each["check"])
        for each in pa.table(DeltaTable(f"{home.lakehouse}/quality/results").scan()).to_pylist()
    )
    states = [each["state"] for each in home.command("status", PIPELINE)]
    return State(rows, states, (len(ranges), sorted(kinds.values())), results)


def repeat(home: StoreHome, words: Sequence[str]) -> None:
    """Repeat a step that failed."""
    code, printed, errors = home.attempt(*words)
    if "PlanStillOpen" in printed:
        code, printed, errors = home.attempt("ingest", PIPELINE, "--plan", str(NEXT_PLAN))
    assert code == ExitCode.OK or "NothingToDo" in printed, printed + errors


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    with counted_home(tmp_path_factory.mktemp("store")) as (home, counter):
        points = ("undisturbed", *map(str, range(POINTS)), *(f"c{n}" for n in range(COMMITS)))
        home.prepare(*(_place(step, point) for step in STEPS for point in points))
        yield Prepared(home, counter)


@pytest.mark.parametrize("point", range(POINTS))
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_the_store_refuses_ends_with_storage_refused_and_can_be_repeated(
    prepared: Prepared, step: str, point: int
) -> None:
    requests, expected = prepared.undisturbed(step)
    home, (prepare, words) = prepared.home, STEPS[step]
    home.place(_place(step, str(point)))
    prepare(home)
    with prepared.counter.refused(after=point * requests.total() // POINTS):
        code, printed, errors = home.attempt(*words)
    assert code in (ExitCode.REFUSED, ExitCode.TRANSIENT, ExitCode.UNKNOWN_OUTCOME), errors
    assert set(re.findall(r'"error": "(\w+)"', printed)) == {"StorageRefused"}
    repeat(home, words)
    # A repeated step may record a further event, such as a second decision, and check again.
    assert state(home)[:2] == expected[:2]


@pytest.mark.parametrize("step", STEPS)
def test_a_commit_whose_answer_is_lost_is_not_made_twice(prepared: Prepared, step: str) -> None:
    """Lose the answer to each commit of the step in turn."""
    requests, expected = prepared.undisturbed(step)
    home, (prepare, words) = prepared.home, STEPS[step]
    commits = commits_of(requests)
    assert 0 < commits <= COMMITS
    for commit in range(commits):
        home.place(_place(step, f"c{commit}"))
        prepare(home)
        with prepared.counter.lost_answer(commit):
            code, printed, errors = home.attempt(*words)
        # The lost answer made a client write again.
        assert commits_of(prepared.counter.take()) > commits
        assert code == ExitCode.OK, printed + errors
        assert state(home) == expected

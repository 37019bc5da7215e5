"""Tables in an object store: a process is killed at each of its requests, and machines race.

A kill comes before the store gets a request, or after the store has executed it. Later commands
find the tables and the log copies that the process has left. Kafka is in memory, and PyArrow and
delta-rs replace Spark (tests/support/store_home.py).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.request_counts import Kill, RequestCounter
from tests.support.request_steps import counted_home
from tests.support.store_home import PIPELINE, StoreHome
from tidemark.core.errors import ExitCode

pytestmark = pytest.mark.store

RECORDS = 30
POINTS = 24
"""Number of requests of a run at which a process is killed, evenly distributed."""
TRIALS = 6
_LIMIT_S = 300


@dataclass(frozen=True)
class Prepared:
    """A home with prepared tables, and the number of requests of a run.

    Attributes:
        home: The home.
        counter: The proxy in front of the store.
        requests: Requests of one undisturbed run of all steps.
    """

    home: StoreHome
    counter: RequestCounter
    requests: int


def _places() -> Iterator[str]:
    yield "undisturbed"
    for trial in range(TRIALS):
        yield from (f"same-{trial}", f"other-{trial}")
    for point in range(POINTS):
        yield from (f"before-{point}", f"after-{point}")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """Prepare the tables of all tests, and count the requests of a run."""
    with counted_home(tmp_path_factory.mktemp("store")) as (home, counter):
        home.prepare(*_places())
        home.place("undisturbed")
        home.produce(RECORDS)
        counter.take()
        process = home.process("run", PIPELINE)
        process.join(_LIMIT_S)
        assert process.exitcode == ExitCode.OK
        requests = counter.take().total()
        print(f"a run makes {requests} requests")
        assert_exact(home)
        yield Prepared(home, counter, requests)


def assert_exact(home: StoreHome) -> None:
    """Check the rows of all tables against the topic, and that no work is left."""
    records = home.records()
    bronze = pa.table(DeltaTable(f"{home.lakehouse}/bronze/{PIPELINE}").scan()).to_pylist()
    assert sorted((row["partition"], row["offset"], row["value"]) for row in bronze) == records
    typed = pa.table(DeltaTable(f"{home.lakehouse}/silver/{PIPELINE}").scan()).to_pylist()
    found = sorted((row["partition"], row["offset"], row["value"].encode()) for row in typed)
    assert found == records
    newest = {(row["partition"], row["key"]): row["offset"] for row in sorted(typed, key=_offset)}
    latest = pa.table(DeltaTable(f"{home.lakehouse}/silver/{PIPELINE}_latest").scan()).to_pylist()
    assert {(row["partition"], row["key"]): row["offset"] for row in latest} == newest
    assert len(latest) == len(newest)
    (idle,) = [home.command("plan", PIPELINE)]
    assert idle["plan"] is None, idle


def _offset(row: dict[str, int]) -> int:
    return row["offset"]


@pytest.mark.parametrize(
    ("is_applied", "point"),
    [
        pytest.param(
            is_applied,
            point,
            id=f"{'after' if is_applied else 'before'}-{point}",
            marks=pytest.mark.slow if point == bounded else pytest.mark.faults,
        )
        for is_applied, bounded in ((False, POINTS // 2), (True, POINTS // 3))
        for point in range(POINTS)
    ],
)
def test_a_run_after_a_kill_at_any_request_lands_each_record_once(
    prepared: Prepared, is_applied: bool, point: int
) -> None:
    home = prepared.home
    home.place(f"{'after' if is_applied else 'before'}-{point}")
    home.produce(RECORDS)
    request = 1 + point * prepared.requests // POINTS

    process = home.process(
        "run", PIPELINE, before=lambda pid: prepared.counter.kill_at(Kill(pid, request, is_applied))
    )
    process.join(_LIMIT_S)
    assert process.exitcode == -signal.SIGKILL

    home.command("run", PIPELINE)
    assert_exact(home)


@pytest.mark.faults
@pytest.mark.parametrize("machine", ["same", "other"])
@pytest.mark.parametrize("trial", range(TRIALS))
def test_two_runs_at_once_land_each_record_once(
    prepared: Prepared, machine: str, trial: int
) -> None:
    """A run that loses a race ends with an error, or has nothing to do. A later run completes."""
    home = prepared.home
    home.place(f"{machine}-{trial}")
    home.produce(RECORDS)
    machines = ("", "" if machine == "same" else f"-{trial}")
    processes = [home.process("run", PIPELINE, machine=each) for each in machines]
    for process in processes:
        process.join(_LIMIT_S)
    codes = [process.exitcode for process in processes]
    assert set(codes) <= {ExitCode.OK, ExitCode.TRANSIENT, ExitCode.UNKNOWN_OUTCOME}, codes

    home.command("run", PIPELINE)
    assert_exact(home)

"""The steps whose requests are counted: 300 records of three partitions.

A machine that has run a pipeline before has copies of the logs. `first_plan` and `first_run` are
steps on a machine without copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.request_counts import RequestCounter, Requests
from tests.support.store_home import NEXT_PLAN, PIPELINE, StoreHome
from tests.support.stores import honouring_store

RECORDS = 300
STEPS = (
    *("first_plan", "plan_of_nothing", "idle_run", "status", "plan", "ingest", "check"),
    *("first_run", "run"),
)
"""The steps, in the order in which they run."""
PLACES = ("steps", "first", "run")
"""Places in the store of the tables that `measure_steps` and `measure_run` use."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step.

    Attributes:
        seconds: Its time, without Spark.
        requests: Its requests.
    """

    seconds: float
    requests: Requests


@contextmanager
def counted_home(folder: Path) -> Iterator[tuple[StoreHome, RequestCounter]]:
    """Start a store and the proxy in front of it. Yield a home for the store, and the counter."""
    with honouring_store(folder / "store") as store:
        port = int(store.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
        with RequestCounter(port) as counter:
            home = StoreHome(folder / "home", store, counter)
            with home.opened():
                yield home, counter


def measure_steps(
    home: StoreHome, counter: RequestCounter, place: Callable[[str], None]
) -> Mapping[str, StepCost]:
    """Run each step except `first_run` and `run` once, in a command of its own. Return the costs.

    Args:
        home: The home, prepared for the place `steps`.
        counter: Counts the requests.
        place: Makes later commands use the tables of a place.
    """
    place("steps")
    first = {"first_plan": _measured(home, counter, "plan")}
    # Also copies the logs of the tables that a plan does not read.
    home.command("run", PIPELINE)
    idle = {
        step: _measured(home, counter, command)
        for step, command in (
            ("plan_of_nothing", "plan"),
            ("idle_run", "run"),
            ("status", "status"),
        )
    }
    home.produce(RECORDS)
    return {
        **first,
        **idle,
        "plan": _measured(home, counter, "plan"),
        "ingest": _measured(home, counter, "ingest", "--plan", str(NEXT_PLAN)),
        "check": _measured(home, counter, "check", "--plan", str(NEXT_PLAN)),
    }


def measure_run(
    home: StoreHome, counter: RequestCounter, place: Callable[[str], None]
) -> Mapping[str, StepCost]:
    """Run all steps in one command, first without copies and then with them. Return the costs.

    Args:
        home: The home, prepared for the places `first` and `run`.
        counter: Counts the requests.
        place: As for `measure_steps`.
    """
    place("first")
    home.produce(RECORDS)
    first = _measured(home, counter, "run")
    place("run")
    home.command("run", PIPELINE)
    home.produce(RECORDS)
    return {"first_run": first, "run": _measured(home, counter, "run")}


def _measured(home: StoreHome, counter: RequestCounter, command: str, *options: str) -> StepCost:
    counter.take()
    begun = time.perf_counter()
    home.command(command, PIPELINE, *options)
    return StepCost(time.perf_counter() - begun, counter.take())

"""The steps whose requests are counted: 300 records of three partitions.

A machine that runs a pipeline has copies of its logs from the run before. The two first steps are
those of a machine that has none.
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
"""The places that `measure_steps` and `measure_run` use."""


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
    """Run each step of a run once, in a separate command. Return the cost of each step.

    Args:
        home: The home, prepared for the place `steps`.
        counter: Counts the requests.
        place: Makes later commands use the tables of a place.
    """
    place("steps")
    first = {"first_plan": _measured(home, counter, "plan")}
    # Copies the logs of the other tables.
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
    """Run all steps in one command, without and with copies. Return the costs.

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

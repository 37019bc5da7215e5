"""The tally of the model checking, printed when the tests are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.model.search import Report


@dataclass(frozen=True)
class CountRecorder:
    """Records counts of a test as properties of its report, which a worker passes on.

    Attributes:
        record: Adds a named value to the report of the test.
    """

    record: Callable[[str, object], None]

    def search(self, report: Report) -> None:
        self.record(_SEARCH, (str(report), report.states))

    def histories(self, histories: int, steps: int) -> None:
        """Record random histories without a violation, and their steps."""
        self.record(_HISTORIES, (histories, steps))


_SEARCH = "model search"
_HISTORIES = "random histories"


@pytest.fixture
def recorder(record_property: Callable[[str, object], None]) -> CountRecorder:
    return CountRecorder(record_property)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each search, and one for the random histories."""
    passed = [r for r in terminalreporter.stats.get("passed", ()) if r.when == "call"]
    properties: list[tuple[str, Any]] = sorted(
        chain.from_iterable(r.user_properties for r in passed)
    )
    searches = [value for name, value in properties if name == _SEARCH]
    if searches:
        terminalreporter.section("model checking")
        for report, _ in searches:
            terminalreporter.write_line(report)
        states = sum(states for _, states in searches)
        terminalreporter.write_line(f"{len(searches)} searches, {states:,} states, no violation")
    histories = [value for name, value in properties if name == _HISTORIES]
    if histories:
        count, steps = (sum(numbers) for numbers in zip(*histories, strict=True))
        terminalreporter.write_line(f"{count:,} random histories of {steps:,} steps, no violation")

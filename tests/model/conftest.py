"""The tally of the model checking, printed when the tests are over."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.model.search import Report


@dataclass
class Visited:
    """What the searches of this test run have seen.

    Attributes:
        reports: One for each search that came to its end.
        histories: Number of random histories that were checked and had no violation.
        steps: Steps in them.
    """

    reports: list[Report] = field(default_factory=list)
    histories: int = 0
    steps: int = 0

    def add(self, report: Report) -> None:
        """Count a search that found no violation."""
        self.reports.append(report)


_VISITED = pytest.StashKey[Visited]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing seen."""
    config.stash[_VISITED] = Visited()


@pytest.fixture
def visited(request: pytest.FixtureRequest) -> Visited:
    """Counts what was visited, for the summary."""
    return request.config.stash[_VISITED]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line for each search, and one for the random histories."""
    seen = config.stash[_VISITED]
    if seen.reports:
        terminalreporter.section("model checking")
        for report in seen.reports:
            terminalreporter.write_line(str(report))
        states = sum(report.states for report in seen.reports)
        terminalreporter.write_line(
            f"{len(seen.reports)} searches, {states:,} states, no violation"
        )
    if seen.histories:
        terminalreporter.write_line(
            f"{seen.histories:,} random histories of {seen.steps:,} steps, no violation"
        )

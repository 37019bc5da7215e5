"""Prints the slowest tests and the seconds of each folder after a run of many tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

MANY = 500
"""A run of fewer tests prints nothing."""
SLOWEST = 40
"""Number of listed tests."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Sum the set-up, call and teardown of each test in this process or its workers."""
    tests: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tests[report.nodeid] += report.duration
    if len(tests) < MANY:
        return
    terminalreporter.section("times")
    for line in summary(tests):
        terminalreporter.write_line(line)


def summary(tests: Mapping[str, float]) -> Iterator[str]:
    """Yield lines about tests (seconds by node id): each folder, then the slowest tests.

    Test files outside of folders have lines of their own.
    """
    places: dict[str, list[float]] = defaultdict(list)
    for test, seconds in tests.items():
        places[_place(test)].append(seconds)
    totals = {place: sum(each) for place, each in places.items()}
    yield f"seconds per folder, of {sum(totals.values()):.0f} seconds in {len(tests)} tests"
    for place in sorted(totals, key=totals.__getitem__, reverse=True):
        yield f"{totals[place]:8.1f}  {place} ({len(places[place])} tests)"
    yield f"slowest {SLOWEST} tests, in seconds"
    for test in sorted(tests, key=tests.__getitem__, reverse=True)[:SLOWEST]:
        yield f"{tests[test]:8.1f}  {test}"


def _place(test: str) -> str:
    """Return the folder of a test (`tests/services`), or its file if it is in no folder."""
    return "/".join(test.partition("::")[0].split("/")[:2])

"""The judge of every fault test, and the tally that `make test-faults` ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.kafka_judge import Range
from tests.support.lake import Lake
from tests.support.verdict import Verdict, judge
from tidemark.core.watermarks import IsolationLevel

HEADINGS = {
    "test_crash_points": "crash points",
    "test_concurrent_operations": "concurrent operations",
    "test_maintenance_races": "maintenance races",
    "test_zombies": "zombies",
    "test_hostile_logs": "hostile logs",
    "test_broker_faults": "broker faults",
    "test_repairs": "repairs",
    "test_standalone_cluster": "clusters",
    "test_fences": "fences caught",
}
"""What the tests of a module are counted as, by the beginning of its name."""


@dataclass(frozen=True)
class Court:
    """Judges tables, and tells its verdicts as properties of the test's report.

    Attributes:
        record: Adds a named value to the report of the test; a worker hands those over.
    """

    record: Callable[[str, object], None]

    def judge(
        self,
        lake: Lake,
        *,
        ranges: Mapping[int, Range] | None = None,
        isolation: str = "read_committed",
    ) -> Verdict:
        """Compare a pipeline's table with its topic, which must be exact.

        Args:
            lake: The pipeline.
            ranges: What must have landed, by partition; the whole log if None.
            isolation: What a reader may see.
        """
        topic = lake.spec.topic
        topic_id = lake.watermarks.topic_watermarks(topic, IsolationLevel(isolation)).topic_id
        bootstrap = str(lake.connection["bootstrap.servers"])
        return self.count(
            judge(lake.rows(), bootstrap, topic, topic_id, ranges=ranges, isolation=isolation)
        )

    def count(self, verdict: Verdict) -> Verdict:
        """Tell a verdict; it must be exact."""
        self.record(_VERDICT, (verdict.records, len(verdict.lost), len(verdict.doubled)))
        assert verdict.exact, verdict
        return verdict


_VERDICT = "verdict"
_REMOVED = "::test_a_removed_fence_is_noticed["


@pytest.fixture
def court(record_property: Callable[[str, object], None]) -> Court:
    """Judges what the test has landed."""
    return Court(record_property)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was tried, and what it cost: the line to look at."""
    passed, tried = Counter[str](), Counter[str]()
    told: list[tuple[str, Any]] = []
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            # The report of a module that could not be imported has no such thing.
            is_call = getattr(report, "when", None) == "call"
            told += report.user_properties if is_call else ()
            heading = _heading(getattr(report, "nodeid", ""))
            # Of the tests of fences those count that remove one.
            if heading == HEADINGS["test_fences"] and _REMOVED not in report.nodeid:
                continue
            if heading and (outcome != "passed" or is_call):
                tried[heading] += 1
                passed[heading] += outcome == "passed"
    if not tried:
        return
    tally = [f"{heading} {passed[heading]}/{tried[heading]}" for heading in HEADINGS.values()]
    verdicts = [(0, 0, 0)] + [value for name, value in told if name == _VERDICT]
    records, lost, doubled = (sum(numbers) for numbers in zip(*verdicts, strict=True))
    tally.append(f"records judged {records:,}, lost {lost:,}, doubled {doubled:,}")
    terminalreporter.section("exactly once under faults")
    terminalreporter.write_line(", ".join(tally))


def _heading(nodeid: str) -> str | None:
    file = nodeid.partition("::")[0].rpartition("/")[2]
    return next((text for name, text in HEADINGS.items() if file.startswith(name)), None)

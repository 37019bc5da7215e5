"""The judge of every fault test, and the tally at the end of `make test-faults`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.core.watermarks import IsolationLevel

if TYPE_CHECKING:
    # Every test process loads this plugin, and few need Kafka and Spark.
    from tests.support.kafka_judge import Range
    from tests.support.lake import Lake
    from tests.support.verdict import Verdict

HEADINGS = {
    "test_crash_points": "crash points",
    "test_store_crashes": "crashes at requests",
    "test_concurrent_operations": "concurrent operations",
    "test_maintenance_races": "maintenance races",
    "test_zombies": "zombies",
    "test_hostile_logs": "hostile logs",
    "test_broker_faults": "broker faults",
    "test_repairs": "repairs",
    "test_standalone_cluster": "clusters",
    "test_fences": "fences caught",
}
"""Headings of the tally by the start of a module's name."""


@dataclass(frozen=True)
class TableJudge:
    """Compares tables with logs, and adds the results to the test's report.

    Attributes:
        record: Adds a named value to the report of the test, which a worker passes on.
    """

    record: Callable[[str, object], None]

    def check(
        self,
        lake: Lake,
        *,
        ranges: Mapping[int, Range] | None = None,
        isolation: str = "read_committed",
    ) -> Verdict:
        """Compare a pipeline's table with its topic, and require that it is exact.

        Args:
            lake: The pipeline.
            ranges: The offsets that must have landed, by partition; the whole log if None.
            isolation: The isolation level of the reader.
        """
        from tests.support.verdict import judge

        topic = lake.spec.topic
        topic_id = lake.watermarks.topic_watermarks(topic, IsolationLevel(isolation)).topic_id
        bootstrap = str(lake.connection["bootstrap.servers"])
        return self.count(
            judge(lake.rows(), bootstrap, topic, topic_id, ranges=ranges, isolation=isolation)
        )

    def count(self, verdict: Verdict) -> Verdict:
        """Add a result to the report, and require that it is exact."""
        self.record(_VERDICT, (verdict.records, len(verdict.lost), len(verdict.doubled)))
        assert verdict.exact, verdict
        return verdict


_VERDICT = "verdict"
_REMOVED = "::test_a_removed_fence_is_noticed["


@pytest.fixture
def table_judge(record_property: Callable[[str, object], None]) -> TableJudge:
    """Return the judge of the test's tables."""
    return TableJudge(record_property)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of passed cases by heading, and of judged records."""
    passed, total = Counter[str](), Counter[str]()
    properties: list[tuple[str, Any]] = []
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            # The report of a module whose import failed has no such attribute.
            is_call = getattr(report, "when", None) == "call"
            properties += report.user_properties if is_call else ()
            heading = _heading(getattr(report, "nodeid", ""))
            # Of test_fences.py, only tests that remove a fence count.
            if heading == HEADINGS["test_fences"] and _REMOVED not in report.nodeid:
                continue
            if heading and (outcome != "passed" or is_call):
                total[heading] += 1
                passed[heading] += outcome == "passed"
    if not total:
        return
    tally = [f"{heading} {passed[heading]}/{total[heading]}" for heading in HEADINGS.values()]
    verdicts = [(0, 0, 0)] + [value for name, value in properties if name == _VERDICT]
    records, lost, doubled = (sum(numbers) for numbers in zip(*verdicts, strict=True))
    tally.append(f"records judged {records:,}, lost {lost:,}, doubled {doubled:,}")
    terminalreporter.section("exactly once under faults")
    terminalreporter.write_line(", ".join(tally))


def _heading(nodeid: str) -> str | None:
    file = nodeid.partition("::")[0].rpartition("/")[2]
    return next((text for name, text in HEADINGS.items() if file.startswith(name)), None)

"""The judge of every fault test, and the tally that `make test-faults` ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.kafka_judge import Range
from tests.support.lake import Lake
from tests.support.proxy import ProxiedBroker, proxied_broker
from tests.support.verdict import Verdict, judge
from tidemark.adapters.broker.embedded import BrokerStatus
from tidemark.core.layout import Layout
from tidemark.core.marks import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEADINGS = {
    "test_crash_points": "crash points",
    "test_zombies": "zombies",
    "test_hostile_logs": "hostile logs",
    "test_broker_faults": "broker faults",
    "test_repairs": "repairs",
    "test_standalone_cluster": "clusters",
    "test_fences": "fences caught",
}
"""What the tests of a module are counted as, by the beginning of its name."""


@dataclass
class Court:
    """Judges tables and adds up what it found.

    Attributes:
        totals: Records judged, lost and doubled over the whole run.
    """

    totals: Counter[str] = field(default_factory=Counter)

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
        topic_id = lake.marks.topic_marks(topic, IsolationLevel(isolation)).topic_id
        bootstrap = str(lake.connection["bootstrap.servers"])
        return self.count(
            judge(lake.rows(), bootstrap, topic, topic_id, ranges=ranges, isolation=isolation)
        )

    def count(self, verdict: Verdict) -> Verdict:
        """Add a verdict to the totals; it must be exact."""
        self.totals["records"] += verdict.records
        self.totals["lost"] += len(verdict.lost)
        self.totals["doubled"] += len(verdict.doubled)
        assert verdict.exact, verdict
        return verdict


COURT = pytest.StashKey[Court]()


@pytest.fixture
def court(request: pytest.FixtureRequest) -> Court:
    """The one court of the run."""
    return request.config.stash.setdefault(COURT, Court())


@pytest.fixture
def lake(spark: SparkSession, broker: BrokerStatus, tmp_path: Path) -> Lake:
    """A lake of this test's own; `lake.of(topic)` is a pipeline over a topic."""
    connection = {"bootstrap.servers": broker.bootstrap}
    return Lake(session=spark, root=tmp_path, connection=connection)


@pytest.fixture(scope="session")
def broker_behind_proxy(
    layout: Layout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedBroker]:
    """One more Kafka node for the whole run, with a proxy in front of it."""
    with proxied_broker(tmp_path_factory.mktemp("proxied"), layout.kafka_jars) as proxied:
        yield proxied


@pytest.fixture
def proxied(broker_behind_proxy: ProxiedBroker) -> Iterator[ProxiedBroker]:
    """The node behind the proxy; nothing is held or slow before a test, nor after it."""
    yield broker_behind_proxy
    broker_behind_proxy.proxy.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was tried, and what it cost: the line to look at."""
    passed, tried = Counter[str](), Counter[str]()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            heading = _heading(getattr(report, "nodeid", ""))
            # Of the fences those that were removed count, not the tests about the list of them.
            if heading == HEADINGS["test_fences"] and "[" not in report.nodeid:
                continue
            if heading and (outcome != "passed" or report.when == "call"):
                tried[heading] += 1
                passed[heading] += outcome == "passed"
    if not tried:
        return
    totals = terminalreporter.config.stash.get(COURT, Court()).totals
    tally = [f"{heading} {passed[heading]}/{tried[heading]}" for heading in HEADINGS.values()]
    tally.append(f"records judged {totals['records']:,}")
    tally += [f"lost records {totals['lost']}", f"duplicated records {totals['doubled']}"]
    terminalreporter.section("exactly once under faults")
    terminalreporter.write_line(", ".join(tally))


def _heading(nodeid: str) -> str | None:
    file = nodeid.partition("::")[0].rpartition("/")[2]
    return next((text for name, text in HEADINGS.items() if file.startswith(name)), None)

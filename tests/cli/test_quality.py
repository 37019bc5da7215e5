"""Bad data from Kafka to the published view: `tidemark check`, `publication` and `report`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import TopicFactory
from tests.support.browser import open_page
from tests.support.commands import Command
from tests.support.kafka_judge import read_ranges
from tests.support.transactions import Record, produce_aborted, produce_records
from tidemark.app.app import App
from tidemark.app.run import main
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.local.samples import SAMPLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

_SPEC = """
name: events
topic: {topic}
schedule: "@daily"
start: earliest
quality: {{suite: prices}}
"""
_PRICE_RULE = "expect_column_values_to_be_between of column price"

Place = tuple[int, int]


@dataclass(frozen=True)
class Desk:
    """A pipeline of prices over a topic of two partitions.

    Attributes:
        bootstrap: Address of the broker.
        topic: The topic.
    """

    bootstrap: str
    topic: str

    def quotes(self, start: int, **wrong: Any) -> list[Record]:
        """Twelve quotes, one after the other in two partitions; the first has wrong fields."""
        now_ms = int(time.time() * 1000)
        made = SAMPLES["prices"].records(seed=1, start=start, count=12, base_ms=now_ms)
        records = [
            Record(key=each.key, value=each.value, partition=number % 2)
            for number, each in enumerate(made)
        ]
        if wrong:
            first = next(n for n, each in enumerate(records) if each.value is not None)
            value = json.loads(records[first].value or b"") | wrong
            records[first] = records[first]._replace(value=json.dumps(value).encode())
        return records

    def places(self) -> set[Place]:
        """Return partition and offset of each committed record in Kafka."""
        ranges = {partition: (0, 10**9) for partition in (0, 1)}
        judged = read_ranges(self.bootstrap, self.topic, ranges)
        return {(record.partition, record.offset) for record in judged}

    def land(self, records: Sequence[Record]) -> set[Place]:
        """Produce records and land them as one plan, in this process; return their offsets."""
        before = self.places()
        produce_records(self.bootstrap, self.topic, records)
        app = App.from_environment()
        plan = app.pipeline("events").planner.plan(f"after {len(before)} records").plan
        assert plan is not None
        app.pipeline("events").ingest(plan.sequence)
        return self.places() - before


@pytest.fixture
def desk(tmp_path: Path, broker: BrokerStatus, topic: TopicFactory, spark: SparkSession) -> Desk:
    """Its plans land in the session that the tests share."""
    assert spark
    name = topic(partitions=2)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.yaml").write_text(_SPEC.format(topic=name))
    return Desk(broker.bootstrap, name)


def check(*plans: int) -> int:
    """Run the job of `tidemark check` in this process, and return its exit code."""
    return main("check", "", [f"--plan=events={plan}" for plan in plans])


def test_a_plan_that_fails_a_critical_rule_is_hidden_until_it_is_released(
    desk: Desk, tidemark: Command, spark: SparkSession, tmp_path: Path
) -> None:
    """The plans before and after it are published; the owner's report contains all."""

    def published_places() -> list[Place]:
        rows = spark.sql(tidemark("publication", "view", "events").out).collect()
        return sorted((row["partition"], row["offset"]) for row in rows)

    good = desk.land(desk.quotes(0))
    lost = [Record(value=b"never", partition=partition) for partition in (0, 0, 1)]
    produce_aborted(desk.bootstrap, desk.topic, lost)
    bad = desk.land(desk.quotes(12, price=-1.0))
    later = desk.land(desk.quotes(24))

    assert check(1, 3) == ExitCode.OK
    blocked = tidemark("check", "events", "--plan=2", "--json")
    assert (blocked.code, blocked.json["error"]) == (ExitCode.QUALITY_FAILED, "QualityFailed")
    assert published_places() == sorted(good | later)
    (kept,) = tidemark("publication", "list", "events", "--json").json
    assert (kept["plan"], kept["status"], kept["reason"]) == (
        2,
        "blocked",
        "every price is above 0",
    )

    # Three aborted records, and a marker in each partition.
    report = tidemark("report", "events", "--json").json
    assert report["plans_by_status"] == {"published": [1, 3], "blocked": [2]}
    certificate = report["certificate"]
    assert (certificate["complete"], certificate["unproven_gaps"]) == (True, 0)
    assert (certificate["records"], certificate["gaps"]) == (36, 5)
    assert [(each["records"], each["gaps"]) for each in certificate["partitions"]] == [
        (18, 3), (18, 2),
    ]  # fmt: skip
    (broken,) = [each for each in report["rules"] if each["failed_plans"]]
    assert (broken["rule"], broken["failed_plans"], broken["plans"]) == (_PRICE_RULE, [2], 3)
    (example,) = broken["examples"]
    assert (example["partition"], example["offset"]) in bad
    assert example["value"] == "-1.0"

    page = tmp_path / "report.html"
    assert tidemark("report", "events", "--output", str(page)).code == ExitCode.OK
    shown = open_page(page, tmp_path)
    assert (shown.fetched, shown.messages, shown.overflow) == ([], [], 0)
    texts = [text for tag, text in shown.elements if tag == "TD"]
    assert {f"every price is above 0{_PRICE_RULE}", "-1.0"} <= set(texts)
    assert [text for text in texts if text.endswith("failed 1 of 3")]

    released = tidemark("publication", "release", "events", "--plan=2", "--reason=a correction")
    assert released.code == ExitCode.OK
    assert published_places() == sorted(good | bad | later)

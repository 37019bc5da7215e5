"""Tests of continuous maintenance during landings, with real Kafka and Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import TopicFactory
from tests.support.kafka_judge import read_all
from tests.support.lake import Lake
from tests.support.transactions import produce_values
from tidemark.local.broker import BrokerStatus
from tidemark.ops.maintenance.rules import MaintenanceResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ROUNDS = 3
WEEK = timedelta(days=7)
LATER = timedelta(days=30)
"""With a clock this fast, maintenance removes all files outside of versions and open plans."""


@contextmanager
def repeated(step: Callable[[], MaintenanceResult]) -> Iterator[list[MaintenanceResult]]:
    """Repeat a step until the block ends; yield its results, and raise its first error."""
    results: list[MaintenanceResult] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            try:
                results.append(step())
            except BaseException as failure:  # noqa: BLE001  raised again by the test's own thread
                failed.append(failure)
                return

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield results
    finally:
        stop.set()
        thread.join(120)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_i1_landings_are_exact_while_a_table_is_maintained_without_pause(
    spark: SparkSession, broker: BrokerStatus, topic: TopicFactory, tmp_path: Path
) -> None:
    """Unreferenced files are removed at once, except those of the open plan."""
    connection = {"bootstrap.servers": broker.bootstrap}
    name = topic(partitions=3)
    lake = Lake(session=spark, root=tmp_path, connection=connection).of(name, records_per_task=100)
    produce_values(broker.bootstrap, name, 10)
    lake.run("the first")
    with repeated(lambda: lake.maintenance(LATER).maintain(WEEK)) as results:
        for number in range(ROUNDS):
            for partition in range(3):
                produce_values(broker.bootstrap, name, 250, partition=partition)
            lake.run(f"run {number}")
    assert lake.delivered_rows() == read_all(broker.bootstrap, name)
    print(f"{len(results)} rounds, {sum(each.replaced for each in results)} files replaced")
    assert sum(each.replaced > 0 for each in results) > 1
    assert sum(len(each.removed) for each in results) > ROUNDS

    removed = lake.undo.undo(3, "ops", "a wrong deploy").rows
    assert removed == 750
    lake.maintenance(LATER).maintain(WEEK)
    lake.run("again")
    assert lake.maintenance(LATER).maintain(WEEK).after is not None
    assert lake.files() == 1
    assert lake.delivered_rows() == read_all(broker.bootstrap, name)
    lake.verify.verify().check()
    # The compaction has replaced the last files of plans. The next maintenance removes them.
    lake.maintenance(LATER).maintain(WEEK)
    assert list(lake.uri.glob("plan-*")) == []

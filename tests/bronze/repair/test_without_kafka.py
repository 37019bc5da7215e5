"""Tests that no step destroys, skips or exports anything while the state of Kafka is unknown."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pytest

from tests.support.memory import MemoryGroups, MemoryKafka
from tests.support.plans import MemoryPipeline, wanted
from tests.support.services import with_ports
from tests.support.zombies import PortWithStep
from tidemark.bronze.backfill.selection import OffsetRanges
from tidemark.bronze.ingest.errors import PlanStillOpen
from tidemark.bronze.ingest.start_rules import given_offsets
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.bronze.repair.exports import Exports
from tidemark.core.errors import LostRange, OnlyCopy, TidemarkError
from tidemark.core.origins import RunOrigin
from tidemark.core.watermarks import TopicWatermarks
from tidemark.delta.errors import EngineFailed, StorageRefused, StorageUnavailable
from tidemark.kafka.errors import (
    InvalidConnection,
    KafkaRefused,
    KafkaUnavailable,
    NoTopicId,
    TopicMissing,
)

FAILURES = {
    "away": KafkaUnavailable(addresses="broker:9092", operation="a test", reason="no answer"),
    "silent leader": KafkaUnavailable(operation="a test", reason="no answer"),
    "wrong password": KafkaRefused(operation="a test", reason="Authentication failed"),
    "not described": TopicMissing(topic="events"),
    "old broker": NoTopicId(topic="events"),
    "undefined": InvalidConnection.of_undefined("kafka_default"),
    "broken": InvalidConnection.of_definition(
        connection="kafka_default", rule="JSON", seen="a text"
    ),
}
"""Failures of every request to Kafka, by their cause."""

WRONG = ("ops", "a test")


@dataclass
class FailingKafka(MemoryKafka):
    """A cluster whose requests fail from a moment on.

    Attributes:
        failure: The error of every request; None before.
    """

    failure: TidemarkError | None = None

    def _topic_id(self, topic: str) -> str:
        if self.failure:
            raise self.failure
        return super()._topic_id(topic)


@dataclass
class Site(MemoryPipeline):
    """A pipeline over such a cluster, and the groups of the cluster."""

    kafka: FailingKafka = field(default_factory=FailingKafka)
    groups: MemoryGroups = field(default_factory=MemoryGroups)

    def written(self) -> Any:
        """Return all that a step can destroy, skip or export."""
        return deepcopy((self.control.rows, self.table.rows, self.groups.offsets))


Step = Callable[[Site], object]


def landed(site: Site) -> None:
    """Land two plans; Kafka keeps the records of the second alone."""
    for number, records in enumerate((4, 3)):
        site.produce(0, records)
        site.run(f"run {number}")
    site.kafka.delete_records("events", 0, 4)


def planned_replacement(site: Site) -> None:
    landed(site)
    site.planner.backfill(replace(wanted((0, 4, 7)), replaces=True), RunOrigin("again"))


def replaced_unrecorded(site: Site) -> None:
    planned_replacement(site)
    site.table.land(site.ledger.plans[3].plan)


def lost(site: Site) -> None:
    """Lose unread records."""
    landed(site)
    site.produce(0, 4)
    site.kafka.delete_records("events", 0, 9)


def recreated(site: Site) -> None:
    landed(site)
    site.kafka.create("events", 2, "id-2")


def landed_while_recreated(site: Site) -> None:
    """Land plan 3 without recording it, and recreate the topic."""
    landed(site)
    site.produce(0, 2)
    site.table.land(site.plan("open"))
    site.kafka.create("events", 2, "id-2")


def landed_unrecorded(site: Site) -> None:
    landed(site)
    site.produce(0, 2)
    site.table.land(site.plan("open"))


def restored(site: Site) -> None:
    landed(site)
    site.table.restore(1)


def control_lost(site: Site) -> None:
    landed(site)
    site.control.clear()


def fresh(site: Site) -> None:
    """Produce records, and land none."""
    site.produce(0, 4)


def export(site: Site) -> object:
    exports = Exports(spec=site.spec, ports=site.planner.ports, groups=site.groups)
    return exports.export("lag")


STEPS: dict[str, tuple[Callable[[Site], None], Step]] = {
    "undo": (landed, lambda site: site.undo.undo(2, *WRONG)),
    "preview of a replacement": (
        landed,
        lambda site: site.backfills.preview(
            OffsetRanges(spans=wanted((0, 4, 7)).spans), None, readable_only=True, replaces=True
        ),
    ),
    "plan of a replacement": (
        landed,
        lambda site: site.planner.backfill(
            replace(wanted((0, 4, 7)), replaces=True), RunOrigin("again")
        ),
    ),
    "replacement": (planned_replacement, lambda site: site.ingest.execute(3)),
    "record of a replacement": (
        replaced_unrecorded,
        lambda site: site.ingest.execute(3),
    ),
    "plan": (lost, lambda site: site.planner.plan("next")),
    "accepted loss": (lost, lambda site: site.decisions.accept_loss((), *WRONG)),
    "accepted recreation": (
        recreated,
        lambda site: site.decisions.accept_recreation(*WRONG),
    ),
    "rewind": (restored, lambda site: site.repair.rewind(*WRONG)),
    "rebuild": (control_lost, lambda site: site.repair.rebuild(*WRONG)),
    "abandoned landing": (landed_unrecorded, lambda site: site.abandon.abandon(3, *WRONG)),
    "discarded landing": (
        landed_while_recreated,
        lambda site: site.abandon.abandon(3, *WRONG, discard=True),
    ),
    "preview of a discarded landing": (
        landed_while_recreated,
        lambda site: site.abandon.abandon(3, *WRONG, discard=True, dry_run=True),
    ),
    "export": (landed, export),
    "import": (fresh, lambda site: site.starts.start(given_offsets("0:2,1:0"), "ops")),
}
"""Every step that reads Kafka before it destroys, skips or exports, with the state before it."""


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize(("prepare", "step"), STEPS.values(), ids=STEPS)
def test_i3_a_step_that_needs_kafka_ends_with_its_error_and_changes_nothing(
    prepare: Callable[[Site], None], step: Step, failure: TidemarkError
) -> None:
    site = Site()
    prepare(site)
    before = site.written()
    site.kafka.failure = failure
    with pytest.raises(type(failure)) as raised:
        step(site)
    assert raised.value is failure
    assert site.written() == before


@pytest.mark.parametrize("name", STEPS)
def test_each_step_succeeds_or_reports_the_answer_of_kafka(name: str) -> None:
    """The step needs only this answer."""
    prepare, step = STEPS[name]
    site = Site()
    prepare(site)
    with suppress(LostRange, NothingToDo):
        step(site)


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_an_undo_that_permits_a_loss_and_a_dry_run_need_no_answer_of_kafka(
    failure: TidemarkError,
) -> None:
    site = Site()
    landed(site)
    before = site.written()
    site.kafka.failure = failure
    shown = site.undo.undo(1, *WRONG, dry_run=True)
    assert (shown.rows, shown.lost, shown.problem) == (4, None, failure)
    assert site.written() == before
    undone = site.undo.undo(1, *WRONG, allow_loss=True)
    assert (undone.rows, undone.lost, undone.problem) == (4, None, failure)
    assert [row[2] for row in site.table.rows] == [4, 5, 6]


def test_an_undo_that_has_begun_is_completed_without_kafka(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then no run reads the offsets of the plan."""
    site = Site()
    landed(site)

    def fail(*_: object) -> NoReturn:
        raise EngineFailed(operation="a test", reason="a test")

    with monkeypatch.context() as patched:
        patched.setattr(site.table, "remove_rows", fail)
        with pytest.raises(EngineFailed):
            site.undo.undo(2, *WRONG)
    site.kafka.failure = FAILURES["away"]
    assert site.undo.undo(2, *WRONG).rows == 3


def test_i3_an_undo_compares_a_plan_that_lands_meanwhile_with_kafka() -> None:
    """The plan was open when the undo began, so it had nothing to lose then."""
    site = Site()
    site.produce(0, 4)
    plan = site.plan("run")

    def land_and_delete() -> None:
        site.ingest.execute(plan.sequence)
        site.kafka.delete_records("events", 0, 4)

    control = PortWithStep(site.control, "plan_record", after=land_and_delete)
    undo = with_ports(site.undo, control=control)
    with pytest.raises(PlanStillOpen, match="has not landed"):
        undo.undo(1, *WRONG)
    with pytest.raises(OnlyCopy):
        site.undo.undo(1, *WRONG)
    assert len(site.table.rows) == 4


def test_i3_offsets_of_a_partition_that_the_topic_lacks_count_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    site.produce(1, 2)
    site.run("run")
    watermarks = site.kafka.topic_watermarks

    def without_partition_1(*arguments: Any) -> TopicWatermarks:
        found = watermarks(*arguments)
        return replace(found, partitions={0: found.partitions[0]})

    monkeypatch.setattr(site.kafka, "topic_watermarks", without_partition_1)
    with pytest.raises(OnlyCopy) as refused:
        site.undo.undo(1, *WRONG)
    assert "no longer has the records at 2 offsets" in refused.value.finding


@pytest.mark.parametrize("failure", [StorageRefused, StorageUnavailable])
def test_i5_a_repair_of_tables_that_cannot_be_compared_abandons_no_plan(
    failure: type[StorageRefused | StorageUnavailable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledger and table agree. Only the look for the landing of the open plan fails."""
    site = Site()
    landed(site)
    site.produce(0, 2)
    site.plan("open")
    before = site.written()

    def fail(_: object) -> NoReturn:
        raise failure(location="here", operation="reading", reason="a test")

    monkeypatch.setattr(site.table, "find_landing", fail)
    for repair in (site.repair.rewind, site.repair.rebuild):
        with pytest.raises(failure):
            repair(*WRONG)
    assert site.written() == before
    assert len(site.ledger.open_plans()) == 1

"""Control-table events, and the rows they are kept as.

One commit of the control table carries the events of one step of one pipeline and one event
number. A row is one event in one partition, so that SQL sees offsets as columns; `Adopted`, which
is about a whole plan, is one row without a partition; so is `Abandoned`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from tidemark.core.marks import IsolationLevel
from tidemark.core.plan import Landing, Plan, PlanKind, PlannedRange, RangeCount


class EventKind(StrEnum):
    """The `event` column."""

    STARTED = "started"
    """The pipeline began in a partition, at `committed_offset`."""
    PLANNED = "planned"
    """`[start_offset, end_offset)` belongs to plan `plan_sequence`."""
    ADOPTED = "adopted"
    """Another run took an open plan over."""
    ABANDONED = "abandoned"
    """A plan was given up before it landed; its offsets are unread again."""
    LANDED = "landed"
    """The range is in the data table; `committed_offset` is where the partition stands now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Partitions that the pipeline had no position in, and where it begins in them.

    Attributes:
        cluster_id: Kafka cluster.
        topic: Topic name.
        topic_id: Incarnation of the topic.
        requested_by: The run that found the partitions.
        offsets: First offset to read, by partition.
    """

    cluster_id: str
    topic: str
    topic_id: str
    requested_by: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan was made."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A run took over a plan that another run left open."""

    sequence: int
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """A plan was given up: the data table's fence keeps it from landing later.

    Attributes:
        sequence: The plan.
        requested_by: Who gave it up.
        reason: Why, in their words.
    """

    sequence: int
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A plan's commit was found in the data table.

    Attributes:
        plan: The plan.
        landing: What the data table's log says of it.
        committed: Committed offset of each of the plan's partitions, this landing included.
    """

    plan: Plan
    landing: Landing
    committed: Mapping[int, int]


ControlEvent: TypeAlias = Started | Planned | Adopted | Abandoned | Landed

Row: TypeAlias = dict[str, Any]
"""Values by column name; a column that an event does not use is absent and reads as null."""


def encode(
    pipeline: str, event_number: int, recorded_at: datetime, events: Iterable[ControlEvent]
) -> list[Row]:
    """Rows of one commit, in the control table's columns."""
    common = {"pipeline": pipeline, "event_number": event_number, "recorded_at": recorded_at}
    return [{**common, **row} for event in events for row in _rows(event)]


def _rows(event: ControlEvent) -> list[Row]:
    match event:
        case Started():
            shared: Row = {
                "event": EventKind.STARTED.value,
                "cluster_id": event.cluster_id,
                "topic": event.topic,
                "topic_id": event.topic_id,
                "requested_by": event.requested_by,
            }
            return [
                {**shared, "partition": partition, "committed_offset": offset}
                for partition, offset in sorted(event.offsets.items())
            ]
        case Planned():
            shared = _plan_columns(event.plan, EventKind.PLANNED)
            return [
                {
                    **shared,
                    "partition": planned.partition,
                    "start_offset": planned.start,
                    "end_offset": planned.end,
                    "low_water_mark": planned.low_water_mark,
                    "end_mark": planned.end_mark,
                }
                for planned in event.plan.ranges
            ]
        case Adopted():
            return [
                {
                    "event": EventKind.ADOPTED.value,
                    "plan_sequence": event.sequence,
                    "requested_by": event.requested_by,
                }
            ]
        case Abandoned():
            return [
                {
                    "event": EventKind.ABANDONED.value,
                    "plan_sequence": event.sequence,
                    "requested_by": event.requested_by,
                    "reason": event.reason,
                }
            ]
        case Landed():
            shared = _plan_columns(event.plan, EventKind.LANDED)
            shared["table_version"] = event.landing.table_version
            return [
                {
                    **shared,
                    "partition": count.partition,
                    "start_offset": count.start,
                    "end_offset": count.end,
                    "records": count.records,
                    "holes": count.holes,
                    "committed_offset": event.committed[count.partition],
                }
                for count in event.landing.counts
            ]


def _plan_columns(plan: Plan, kind: EventKind) -> Row:
    return {
        "event": kind.value,
        "plan_sequence": plan.sequence,
        "plan_kind": plan.kind.value,
        "epoch": plan.epoch,
        "cluster_id": plan.cluster_id,
        "topic": plan.topic,
        "topic_id": plan.topic_id,
        "isolation_level": plan.isolation_level.value,
        "requested_by": plan.requested_by,
        "fingerprint": plan.fingerprint,
    }


def decode(pipeline: str, rows: Iterable[Row]) -> list[tuple[int, list[ControlEvent]]]:
    """Events of a pipeline by event number, oldest first, from its rows in any order."""
    commits: dict[int, dict[tuple[str, int | None], list[Row]]] = {}
    for row in rows:
        event_key = (row["event"], row.get("plan_sequence"))
        commits.setdefault(row["event_number"], {}).setdefault(event_key, []).append(row)
    plans: dict[int, Plan] = {}
    history = []
    for number in sorted(commits):
        groups = commits[number]
        ordered = sorted(groups, key=lambda key: (_ORDER[EventKind(key[0])], key[1] or 0))
        events = [_event(pipeline, EventKind(key[0]), groups[key], plans) for key in ordered]
        history.append((number, events))
    return history


_ORDER = {kind: position for position, kind in enumerate(EventKind)}


def _event(
    pipeline: str, kind: EventKind, rows: Sequence[Row], plans: dict[int, Plan]
) -> ControlEvent:
    first = rows[0]
    match kind:
        case EventKind.STARTED:
            return Started(
                cluster_id=first["cluster_id"],
                topic=first["topic"],
                topic_id=first["topic_id"],
                requested_by=first["requested_by"],
                offsets={row["partition"]: row["committed_offset"] for row in rows},
            )
        case EventKind.PLANNED:
            plan = _plan(pipeline, rows)
            plans[plan.sequence] = plan
            return Planned(plan=plan)
        case EventKind.ADOPTED:
            return Adopted(sequence=first["plan_sequence"], requested_by=first["requested_by"])
        case EventKind.ABANDONED:
            return Abandoned(
                sequence=first["plan_sequence"],
                requested_by=first["requested_by"],
                reason=first["reason"],
            )
        case EventKind.LANDED:
            plan = plans[first["plan_sequence"]]
            return Landed(
                plan=plan,
                landing=_landing(rows),
                committed={row["partition"]: row["committed_offset"] for row in rows},
            )


def _plan(pipeline: str, rows: Sequence[Row]) -> Plan:
    first = rows[0]
    ranges = sorted(
        PlannedRange(
            partition=row["partition"],
            start=row["start_offset"],
            end=row["end_offset"],
            low_water_mark=row["low_water_mark"],
            end_mark=row["end_mark"],
        )
        for row in rows
    )
    return Plan(
        pipeline=pipeline,
        sequence=first["plan_sequence"],
        kind=PlanKind(first["plan_kind"]),
        epoch=first["epoch"],
        cluster_id=first["cluster_id"],
        topic=first["topic"],
        topic_id=first["topic_id"],
        isolation_level=IsolationLevel(first["isolation_level"]),
        requested_by=first["requested_by"],
        ranges=tuple(ranges),
    )


def _landing(rows: Sequence[Row]) -> Landing:
    ordered = sorted(rows, key=lambda row: (row["partition"], row["start_offset"]))
    return Landing(
        sequence=ordered[0]["plan_sequence"],
        table_version=ordered[0]["table_version"],
        counts=tuple(
            RangeCount(
                partition=row["partition"],
                start=row["start_offset"],
                end=row["end_offset"],
                records=row["records"],
            )
            for row in ordered
        ),
    )

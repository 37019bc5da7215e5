"""Encodes control-table events as rows, and decodes them.

One commit of the control table contains the events of one step of one pipeline, which share an
event number. A row is one event in one partition, so that offsets are columns for SQL. An event of
a whole plan or a whole pipeline is one row without a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.errors import ControlDoubled
from tidemark.core.events import (
    Abandoned,
    Adopted,
    BackfillRequested,
    ControlEvent,
    EventKind,
    Landed,
    LossAccepted,
    NewEpoch,
    NewIncarnation,
    Planned,
    Started,
    Superseded,
    Undone,
    UndoStarted,
)
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.origins import origin_columns, origin_of_columns
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.watermarks import IsolationLevel

Row: TypeAlias = dict[str, Any]
"""Values by column name; columns that an event does not use are absent, and null in the table."""


def encode(
    pipeline: str, event_number: int, recorded_at: datetime, events: Iterable[ControlEvent]
) -> list[Row]:
    """Return the rows of one commit, in the control table's columns.

    Leaves out a row that equals another one, because `check_no_duplicates` would report it.
    """
    common = {"pipeline": pipeline, "event_number": event_number, "recorded_at": recorded_at}
    rows = [{**common, **row} for event in events for row in _rows(event)]
    return list({frozenset(row.items()): row for row in rows}.values())


def _rows(event: ControlEvent) -> list[Row]:
    match event:
        case Started() | NewIncarnation():
            return _start_rows(event)
        case BackfillRequested():
            return _backfill_rows(event)
        case Planned():
            return _planned_rows(event.plan)
        case Superseded():
            return _superseded_rows(event)
        case Adopted():
            return [_plan_row(EventKind.ADOPTED, event)]
        case Abandoned() | UndoStarted() | Undone():
            return _decision_rows(event)
        case Landed():
            return _landed_rows(event)
        case LossAccepted():
            return _loss_rows(event)
        case NewEpoch():
            return _epoch_rows(event)


def _start_rows(event: Started | NewIncarnation) -> list[Row]:
    shared: Row = {
        "event": EventKind.STARTED.value,
        "cluster_id": event.cluster_id,
        "topic": event.topic,
        "topic_id": event.topic_id,
        "requested_by": event.requested_by,
        "reason": event.reason,
    }
    if isinstance(event, NewIncarnation):
        shared["event"] = EventKind.NEW_INCARNATION.value
    epochs = event.leader_epochs if isinstance(event, Started) else {}
    return [
        {
            **shared,
            "partition": partition,
            "committed_offset": offset,
            "leader_epoch": epochs.get(partition),
        }
        for partition, offset in sorted(event.offsets.items())
    ]


def _backfill_rows(event: BackfillRequested) -> list[Row]:
    shared: Row = {
        "event": EventKind.BACKFILL_REQUESTED.value,
        "cluster_id": event.cluster_id,
        "topic": event.topic,
        "topic_id": event.topic_id,
        "requested_by": event.requested_by,
        "readable_only": event.readable_only,
        "replaces": event.replaces,
        "reason": event.reason,
    }
    return [
        {**shared, **place, "chunk": number}
        for number, chunk in enumerate(event.chunks, start=1)
        for place in _places(chunk)
    ]


def _places(spans: Mapping[int, SpanSet]) -> Iterator[Row]:
    for partition, some in sorted(spans.items()):
        for span in some:
            yield {"partition": partition, "start_offset": span.start, "end_offset": span.end}


def _plan_row(kind: EventKind, event: Adopted | Abandoned | UndoStarted | Undone | NewEpoch) -> Row:
    return {
        "event": kind.value,
        "plan_sequence": event.sequence,
        "requested_by": event.requested_by,
    }


def _decision_rows(event: Abandoned | UndoStarted | Undone) -> list[Row]:
    reason = {"reason": event.reason}
    match event:
        case Abandoned():
            return [{**_plan_row(EventKind.ABANDONED, event), **reason}]
        case UndoStarted():
            shared = {**_plan_row(EventKind.UNDO_STARTED, event), **reason}
            return _committed_rows(shared, event.committed)
        case Undone(table_version=version):
            return [{**_plan_row(EventKind.UNDONE, event), **reason, "table_version": version}]


def _decision(kind: EventKind, rows: Sequence[Row]) -> Abandoned | UndoStarted | Undone:
    decision = _plan_decision(rows[0])
    if kind is EventKind.UNDONE:
        return Undone(**decision, table_version=rows[0].get("table_version"))
    if kind is EventKind.UNDO_STARTED:
        return UndoStarted(**decision, committed=_committed(rows))
    return Abandoned(**decision)


def _planned_rows(plan: Plan) -> list[Row]:
    shared = {**_plan_columns(plan, EventKind.PLANNED), "replaces": plan.replaces}
    return [
        {
            **shared,
            "partition": planned.partition,
            "start_offset": planned.start,
            "end_offset": planned.end,
            "low_watermark": planned.low_watermark,
            "log_end_offset": planned.log_end_offset,
            "leader_epoch": planned.leader_epoch,
        }
        for planned in plan.ranges
    ]


def _landed_rows(event: Landed) -> list[Row]:
    shared = _plan_columns(event.plan, EventKind.LANDED)
    shared["table_version"] = event.landing.table_version
    rows = [
        {**shared, **_count(count), "committed_offset": event.committed.get(count.partition)}
        for count in event.landing.counts
    ]
    # A plan that missed every offset has landed too: one row without a partition.
    return rows or [shared]


def _superseded_rows(event: Superseded) -> list[Row]:
    shared: Row = {
        "event": EventKind.SUPERSEDED.value,
        "plan_sequence": event.sequence,
        "superseded_by": event.by,
        "topic_id": event.topic_id,
    }
    # If the plan keeps nothing: one row without a partition.
    return [{**shared, **_count(count)} for count in event.counts] or [shared]


def _count(count: RangeCount) -> Row:
    return {
        "partition": count.partition,
        "start_offset": count.start,
        "end_offset": count.end,
        "records": count.records,
        "gaps": count.gaps,
        "unproven_gaps": count.unproven_gaps,
    }


def _epoch_rows(event: NewEpoch) -> list[Row]:
    shared = {
        **_plan_row(EventKind.NEW_EPOCH, event),
        "epoch": event.epoch,
        "table_version": event.table_version,
        "missing_events": event.missing_events,
        "reason": event.reason,
    }
    return _committed_rows(shared, event.committed)


def _committed_rows(shared: Row, committed: Mapping[int, int]) -> list[Row]:
    """Return a row for each partition's committed offset; without any, a row without partition."""
    rows = [
        {**shared, "partition": partition, "committed_offset": offset}
        for partition, offset in sorted(committed.items())
    ]
    return rows or [shared]


def _loss_rows(event: LossAccepted) -> list[Row]:
    shared: Row = {
        "event": EventKind.LOSS_ACCEPTED.value,
        "topic": event.topic,
        "topic_id": event.topic_id,
        "requested_by": event.requested_by,
        "reason": event.reason,
    }
    return [
        {**shared, **place, "committed_offset": event.committed[place["partition"]]}
        for place in _places(event.lost)
    ]


def _plan_columns(plan: Plan, kind: EventKind) -> Row:
    requested_by, chunk = origin_columns(plan.origin)
    return {
        "event": kind.value,
        "plan_sequence": plan.sequence,
        "plan_kind": plan.kind.value,
        "epoch": plan.epoch,
        "cluster_id": plan.cluster_id,
        "topic": plan.topic,
        "topic_id": plan.topic_id,
        "isolation_level": plan.isolation_level.value,
        "requested_by": requested_by,
        "chunk": chunk,
        "fingerprint": plan.fingerprint,
    }


def decode(pipeline: str, rows: Iterable[Row]) -> list[tuple[int, list[ControlEvent]]]:
    """Return the events of a pipeline by event number, oldest first, from rows in any order.

    Raises:
        ControlDoubled: A row occurs more than once.
    """
    rows = list(rows)
    check_no_duplicates(pipeline, rows)
    commits: dict[int, dict[tuple[str, int | None, int | None], list[Row]]] = {}
    for row in rows:
        event_key = (row["event"], row.get("plan_sequence"), row.get("superseded_by"))
        commits.setdefault(row["event_number"], {}).setdefault(event_key, []).append(row)
    plans: dict[int, Plan] = {}
    history = []
    for number in sorted(commits):
        groups = commits[number]
        ordered = sorted(
            groups, key=lambda key: (_ORDER[EventKind(key[0])], key[1] or 0, key[2] or 0)
        )
        events = (_event(pipeline, EventKind(key[0]), groups[key], plans) for key in ordered)
        history.append((number, [event for event in events if event is not None]))
    return history


def check_no_duplicates(pipeline: str, rows: Iterable[Row]) -> None:
    """Raise `ControlDoubled` if a row occurs more than once."""
    seen: set[frozenset[tuple[str, Any]]] = set()
    doubled: set[int] = set()
    for row in rows:
        values = frozenset(row.items())
        if values in seen:
            doubled.add(row["event_number"])
        seen.add(values)
    if doubled:  # fence: doubled-events-are-noticed
        raise ControlDoubled(pipeline=pipeline, events=tuple(sorted(doubled)))


def backfill_requests(history: Iterable[tuple[int, list[ControlEvent]]]) -> list[BackfillRequested]:
    """Return the requested backfills of a history, oldest first."""
    events = (event for _, step in history for event in step)
    return [event for event in events if isinstance(event, BackfillRequested)]


_ORDER = {kind: position for position, kind in enumerate(EventKind)}


def _event(
    pipeline: str, kind: EventKind, rows: Sequence[Row], plans: dict[int, Plan]
) -> ControlEvent | None:
    """Return the event of some rows; None for the landing of a plan whose own event is lost."""
    first = rows[0]
    match kind:
        case EventKind.STARTED:
            return Started(
                **_topic_columns(rows),
                leader_epochs=_by_partition(rows, "leader_epoch"),
                reason=first.get("reason"),
            )
        case EventKind.NEW_INCARNATION:
            return NewIncarnation(**_topic_columns(rows), reason=first["reason"])
        case EventKind.BACKFILL_REQUESTED:
            return _backfill(rows)
        case EventKind.PLANNED:
            plan = _plan(pipeline, rows)
            plans[plan.sequence] = plan
            return Planned(plan=plan)
        case EventKind.SUPERSEDED | EventKind.LANDED:
            return _counted_event(kind, rows, plans.get(first["plan_sequence"]))
        case EventKind.ADOPTED:
            return Adopted(sequence=first["plan_sequence"], requested_by=first["requested_by"])
        case EventKind.ABANDONED | EventKind.UNDO_STARTED | EventKind.UNDONE:
            return _decision(kind, rows)
        case EventKind.LOSS_ACCEPTED:
            return _loss(rows)
        case EventKind.NEW_EPOCH:
            return NewEpoch(
                **_plan_decision(first),
                epoch=first["epoch"],
                table_version=first["table_version"],
                committed=_committed(rows),
                missing_events=first.get("missing_events") or 0,
            )


def _counted_event(
    kind: EventKind, rows: Sequence[Row], plan: Plan | None
) -> Superseded | Landed | None:
    if kind is EventKind.SUPERSEDED:
        return Superseded(
            sequence=rows[0]["plan_sequence"],
            by=rows[0]["superseded_by"],
            topic_id=rows[0]["topic_id"],
            counts=_counts(rows),
        )
    if plan is None:
        return None
    return Landed(plan=plan, landing=_landing(rows), committed=_committed(rows))


def _plan_decision(row: Row) -> dict[str, Any]:
    return {
        "sequence": row["plan_sequence"],
        "requested_by": row["requested_by"],
        "reason": row["reason"],
    }


def _topic_columns(rows: Sequence[Row]) -> dict[str, Any]:
    names = ("cluster_id", "topic", "topic_id", "requested_by")
    return {**{name: rows[0][name] for name in names}, "offsets": _committed(rows)}


def _committed(rows: Sequence[Row]) -> dict[int, int]:
    return _by_partition(rows, "committed_offset")


def _by_partition(rows: Sequence[Row], column: str) -> dict[int, int]:
    """Return a column's values by partition, without the rows that have none."""
    return {row["partition"]: row[column] for row in rows if row.get(column) is not None}


def _spans(rows: Sequence[Row]) -> Mapping[int, SpanSet]:
    return spans_by_partition(
        (row["partition"], Span(row["start_offset"], row["end_offset"])) for row in rows
    )


def _backfill(rows: Sequence[Row]) -> BackfillRequested:
    names = ("cluster_id", "topic", "topic_id", "requested_by", "readable_only")
    chunks: dict[int, list[Row]] = {}
    for row in rows:
        chunks.setdefault(row["chunk"], []).append(row)
    return BackfillRequested(
        **{name: rows[0][name] for name in names},
        chunks=tuple(_spans(chunks[number]) for number in sorted(chunks)),
        replaces=bool(rows[0].get("replaces")),
        reason=rows[0].get("reason"),
    )


def _loss(rows: Sequence[Row]) -> LossAccepted:
    return LossAccepted(
        topic=rows[0]["topic"],
        topic_id=rows[0]["topic_id"],
        lost=_spans(rows),
        committed=_committed(rows),
        requested_by=rows[0]["requested_by"],
        reason=rows[0]["reason"],
    )


def _plan(pipeline: str, rows: Sequence[Row]) -> Plan:
    first = rows[0]
    ranges = sorted(
        PlannedRange(
            partition=row["partition"],
            start=row["start_offset"],
            end=row["end_offset"],
            low_watermark=row["low_watermark"],
            log_end_offset=row["log_end_offset"],
            leader_epoch=row.get("leader_epoch"),
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
        origin=origin_of_columns(first["requested_by"], first.get("chunk")),
        ranges=tuple(ranges),
        replaces=bool(first.get("replaces")),
    )


def _landing(rows: Sequence[Row]) -> Landing:
    return Landing(
        sequence=rows[0]["plan_sequence"],
        table_version=rows[0]["table_version"],
        counts=_counts(rows),
    )


def _counts(rows: Sequence[Row]) -> tuple[RangeCount, ...]:
    ranges = [row for row in rows if row.get("partition") is not None]
    return tuple(
        RangeCount(
            partition=row["partition"],
            start=row["start_offset"],
            end=row["end_offset"],
            records=row["records"],
            unproven_gaps=row.get("unproven_gaps") or 0,
        )
        for row in sorted(ranges, key=lambda row: (row["partition"], row["start_offset"]))
    )

"""Encodes control-table events as rows, and decodes them.

One commit of the control table contains the events of one step of one pipeline, which share an
event number. A row is one event in one partition, so that offsets are columns for SQL. An event of
a whole plan or a whole pipeline is one row without a partition.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.errors import ControlTableDamaged
from tidemark.core.events import (
    Abandoned,
    Adopted,
    BackfillRequested,
    ControlEvent,
    EventKind,
    Landed,
    LossAccepted,
    NewEpoch,
    Planned,
    PublicationDecided,
    RecreationAccepted,
    Started,
    Superseded,
    Undone,
    UndoStarted,
)
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.origins import origin_columns, origin_of_row
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.publication import PublicationStatus
from tidemark.core.watermarks import IsolationLevel

Row: TypeAlias = dict[str, Any]
"""Values by column name; columns that an event does not use are absent, and null in the table."""

_T = TypeVar("_T")

_1970 = datetime(1970, 1, 1, tzinfo=UTC)

_KINDS: Mapping[EventKind, type[ControlEvent]] = {
    EventKind.STARTED: Started,
    EventKind.BACKFILL_REQUESTED: BackfillRequested,
    EventKind.PLANNED: Planned,
    EventKind.SUPERSEDED: Superseded,
    EventKind.ADOPTED: Adopted,
    EventKind.ABANDONED: Abandoned,
    EventKind.LANDED: Landed,
    EventKind.PUBLICATION_DECIDED: PublicationDecided,
    EventKind.UNDO_STARTED: UndoStarted,
    EventKind.UNDONE: Undone,
    EventKind.LOSS_ACCEPTED: LossAccepted,
    EventKind.RECREATION_ACCEPTED: RecreationAccepted,
    EventKind.NEW_EPOCH: NewEpoch,
}
_NAMES = {cls: kind.value for kind, cls in _KINDS.items()}
_ORDER = {kind: position for position, kind in enumerate(EventKind)}

_COLUMNS = {
    "sequence": "plan_sequence",
    "by": "superseded_by",
    "kind": "plan_kind",
    "start": "start_offset",
    "end": "end_offset",
    "decided_by": "requested_by",
    "decided_at": "recorded_at",
    "number": "event_number",
}
"""Columns of fields with another name. All other fields have the name of their column."""
_TYPES: Mapping[str, Callable[[Any], Any]] = {
    "kind": PlanKind,
    "isolation_level": IsolationLevel,
    "status": PublicationStatus,
}
"""Types of fields whose column contains text."""


def encode(
    pipeline: str, event_number: int, recorded_at: datetime, events: Iterable[ControlEvent]
) -> list[Row]:
    """Return the rows of one commit, in the control table's columns.

    Leaves out a row that equals another one, because `check_no_duplicates` would report it.
    """
    common = {"pipeline": pipeline, "event_number": event_number, "recorded_at": recorded_at}
    rows: list[Row] = []
    for event in events:
        shared = {**_shared_columns(event), "event": _NAMES[type(event)], **common}
        # An event without partitions is one row, also a landing of a plan that missed every offset.
        rows += [{**shared, **each} for each in _columns_by_row(event) or [{}]]
    return list({frozenset(row.items()): row for row in rows}.values())


def _shared_columns(event: ControlEvent) -> Row:
    """Return the columns that are equal in all rows of an event."""
    match event:
        case Planned(plan=plan):
            return _plan_columns(plan)
        case Landed(plan=plan, landing=landing):
            return {
                **_plan_columns(plan),
                "replaces": None,
                "table_version": landing.table_version,
            }
        case Adopted(origin=origin):
            return {**_columns(event), "requested_by": str(origin)}
        case _:
            return _columns(event)


def _plan_columns(plan: Plan) -> Row:
    requested_by, chunk = origin_columns(plan.origin)
    origin = {"requested_by": requested_by, "chunk": chunk}
    return {**_columns(plan), **origin, "fingerprint": plan.fingerprint}


def _columns(value: Any) -> Row:
    """Return the fields of a value by column, without those of `_PARTS`."""
    found = {column: getattr(value, name) for name, column in _SINGLE_FIELDS[type(value)]}
    return {
        column: each.value if isinstance(each, Enum) else each for column, each in found.items()
    }


def _columns_by_row(event: ControlEvent) -> list[Row]:
    """Return the columns that differ between the rows of an event, by row."""
    match event:
        case Started(offsets=offsets, leader_epochs=epochs):
            return [
                {**row, "leader_epoch": epochs.get(row["partition"])}
                for row in _offset_rows(offsets)
            ]
        case (
            RecreationAccepted(offsets=offsets)
            | UndoStarted(committed=offsets)
            | NewEpoch(committed=offsets)
        ):
            return _offset_rows(offsets)
        case BackfillRequested(chunks=chunks):
            numbered = enumerate(chunks, start=1)
            return [
                {**row, "chunk": number} for number, chunk in numbered for row in _span_rows(chunk)
            ]
        case LossAccepted(committed=committed):
            return [
                {**row, "committed_offset": committed[row["partition"]]}
                for row in _span_rows(event.lost)
            ]
        case PublicationDecided(spans=spans):
            return [*_span_rows(spans)]
        case Planned():
            return [_columns(planned) for planned in event.plan.ranges]
        case Superseded():
            return [_count_columns(count) for count in event.counts]
        case Landed(committed=committed):
            return [
                {**_count_columns(count), "committed_offset": committed.get(count.partition)}
                for count in event.landing.counts
            ]
        case Adopted() | Abandoned() | Undone():
            return []


def _offset_rows(offsets: Mapping[int, int]) -> list[Row]:
    return [{"partition": p, "committed_offset": offset} for p, offset in sorted(offsets.items())]


def _span_rows(spans: Mapping[int, SpanSet]) -> Iterator[Row]:
    for partition, some in sorted(spans.items()):
        for span in some:
            yield {"partition": partition, "start_offset": span.start, "end_offset": span.end}


def _count_columns(count: RangeCount) -> Row:
    return {**_columns(count), "gaps": count.gaps}


def decode(pipeline: str, rows: Iterable[Row]) -> list[tuple[int, list[ControlEvent]]]:
    """Return the events of a pipeline by event number, oldest first, from rows in any order.

    Raises:
        ControlTableDamaged: A row occurs more than once.
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
    """Raise `ControlTableDamaged` if a row occurs more than once."""
    seen: set[frozenset[tuple[str, Any]]] = set()
    duplicates: set[int] = set()
    for row in rows:
        values = frozenset(row.items())
        if values in seen:
            duplicates.add(row["event_number"])
        seen.add(values)
    if duplicates:  # fence: duplicate-events-are-noticed
        raise ControlTableDamaged.by_duplicates(pipeline=pipeline, events=tuple(sorted(duplicates)))


def event_digest(rows: Iterable[Row]) -> str:
    """Return the SHA-256 of an event number's rows, in hexadecimal.

    The digest depends on the values alone. The order of rows and columns, columns that are null,
    and the engine that has read the rows do not matter.

    Args:
        rows: All rows of one event number of a pipeline.
    """
    contents = sorted(
        json.dumps(
            {column: _plain(value) for column, value in row.items() if value is not None},
            sort_keys=True,
        )
        for row in rows
    )
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Return the value of a column for JSON; a time becomes its microseconds since 1970."""
    if isinstance(value, datetime):
        return (value - _1970) // timedelta(microseconds=1)
    return value


def backfill_requests(history: Iterable[tuple[int, list[ControlEvent]]]) -> list[BackfillRequested]:
    """Return the requested backfills of a history, oldest first."""
    events = (event for _, step in history for event in step)
    return [event for event in events if isinstance(event, BackfillRequested)]


def losses(pipeline: str, rows: Sequence[Row]) -> list[tuple[datetime, LossAccepted]]:
    """Return the accepted losses of some rows with the times of their events, oldest first."""
    times = {row["event_number"]: row["recorded_at"] for row in rows}
    return [
        (times[number], event)
        for number, events in decode(pipeline, rows)
        for event in events
        if isinstance(event, LossAccepted)
    ]


def _event(
    pipeline: str, kind: EventKind, rows: Sequence[Row], plans: dict[int, Plan]
) -> ControlEvent | None:
    """Return the event of some rows; None for the landing of a plan whose own event is lost."""
    if kind is EventKind.PLANNED:
        plan = _value(Plan, rows, pipeline=pipeline)
        plans[plan.sequence] = plan
        return Planned(plan=plan)
    if kind is EventKind.LANDED:
        landing = _value(Landing, rows)
        planned = plans.get(landing.sequence)
        if planned is None:
            return None
        return Landed(plan=planned, landing=landing, committed=_by_partition(rows))
    return _value(_KINDS[kind], rows)


def _value(cls: type[_T], rows: Sequence[Row], **given: Any) -> _T:
    """Return a value from the rows of an event; a field with a null column gets its default."""
    first, values = rows[0], given
    for name, column in _SINGLE_FIELDS[cls]:
        value = first.get(column)
        if name not in given and value is not None:
            values[name] = _TYPES[name](value) if name in _TYPES else value
    for name in _PART_FIELDS[cls]:
        values[name] = _PARTS[name](rows)
    return cls(**values)


def _by_partition(rows: Sequence[Row], column: str = "committed_offset") -> dict[int, int]:
    """Return a column's values by partition, without the rows that have none."""
    return {row["partition"]: row[column] for row in rows if row.get(column) is not None}


def _spans(rows: Sequence[Row]) -> Mapping[int, SpanSet]:
    return spans_by_partition(
        (row["partition"], Span(row["start_offset"], row["end_offset"]))
        for row in rows
        if row.get("partition") is not None
    )


def _chunks(rows: Sequence[Row]) -> tuple[Mapping[int, SpanSet], ...]:
    chunks: dict[int, list[Row]] = {}
    for row in rows:
        chunks.setdefault(row["chunk"], []).append(row)
    return tuple(_spans(chunks[number]) for number in sorted(chunks))


def _ranges(rows: Sequence[Row]) -> tuple[PlannedRange, ...]:
    return tuple(sorted(_value(PlannedRange, [row]) for row in rows))


def _counts(rows: Sequence[Row]) -> tuple[RangeCount, ...]:
    counts = (_value(RangeCount, [row]) for row in rows if row.get("partition") is not None)
    return tuple(sorted(counts, key=lambda count: (count.partition, count.start)))


_PARTS: Mapping[str, Callable[[Sequence[Row]], Any]] = {
    "origin": lambda rows: origin_of_row(rows[0]),
    "offsets": _by_partition,
    "committed": _by_partition,
    "leader_epochs": lambda rows: _by_partition(rows, "leader_epoch"),
    "lost": _spans,
    "spans": _spans,
    "chunks": _chunks,
    "ranges": _ranges,
    "counts": _counts,
}
"""Reads a field from all rows of an event; each other field is a column of its rows."""

_FIELDS: Mapping[type, tuple[str, ...]] = {
    cls: tuple(each.name for each in fields(cls))
    for cls in (*_NAMES, Plan, PlannedRange, Landing, RangeCount)
}
_SINGLE_FIELDS = {
    cls: tuple((name, _COLUMNS.get(name, name)) for name in names if name not in _PARTS)
    for cls, names in _FIELDS.items()
}
"""Fields that a single row contains, each with its column."""
_PART_FIELDS = {
    cls: tuple(name for name in names if name in _PARTS) for cls, names in _FIELDS.items()
}

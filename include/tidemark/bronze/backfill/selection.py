"""Backfill selections, and their division into chunks that land one after the other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from tidemark.bronze.backfill.errors import BackfillTooLarge
from tidemark.core.errors import InvalidSelection
from tidemark.core.offsets import Span, SpanSet, size_of, spans_by_partition
from tidemark.core.texts import TIME_RULE, parse_time

_NUMBER = "[0-9]{1,18}"
MAX_CHUNKS = 1_000
"""Airflow maps a task over at most 1,024 values by default (`core.max_map_length`)."""


# -- selections ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRanges:
    """Offset ranges by partition."""

    spans: Mapping[int, SpanSet]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """From the first record with a timestamp at or after `start` to the first at or after `end`.

    Timestamps of a partition need not be in order: Kafka's time index selects the offsets.

    Attributes:
        start: First moment, with a UTC offset.
        end: First moment after the window, with a UTC offset.
        partitions: Partitions to select; all if empty.
    """

    start: datetime
    end: datetime
    partitions: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedLog:
    """All offsets that Kafka has now.

    Attributes:
        partitions: Partitions to select; all if empty.
    """

    partitions: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRanges:
    """The offset ranges of an earlier plan.

    Attributes:
        sequence: Plan number.
    """

    sequence: int


Selection: TypeAlias = OffsetRanges | TimeWindow | RetainedLog | PlanRanges
"""The ways to select offsets."""


class SelectBy(StrEnum):
    """The ways to select offsets, as a form shows them."""

    OFFSETS = "offset ranges"
    TIME = "time window"
    RETAINED = "retained log"
    PLAN = "ranges of a plan"


def select(
    *,
    offsets: Sequence[str] = (),
    start: str | None = None,
    end: str | None = None,
    retained: bool = False,
    plan: int | None = None,
    partitions: Collection[int] = (),
    by: SelectBy | None = None,
) -> Selection:
    """Return the selection of a form or a command line, which must contain exactly one.

    Args:
        offsets: Ranges such as `0:100-200`: the offsets 100 to 199 of partition 0. The form that
            errors and pages print, `0: [100, 200)`, is accepted, too.
        start: First moment of a time window, ISO 8601 with a UTC offset.
        end: First moment after the time window.
        retained: Select all offsets that Kafka has now.
        plan: Number of a plan whose offset ranges to select.
        partitions: Partitions of the time window or the retained log; all if empty.
        by: The choice of a form; None on a command line. Fields of other choices must be empty.

    Raises:
        InvalidSelection
    """
    ways = {
        SelectBy.OFFSETS: bool(offsets),
        SelectBy.TIME: start is not None or end is not None,
        SelectBy.RETAINED: retained,
        SelectBy.PLAN: plan is not None,
    }
    chosen = [way for way, is_chosen in ways.items() if is_chosen]
    if len(chosen) != 1 or by not in (None, *chosen):
        rule = f"one of: {', '.join(ways)}"
        if by:
            rule = f"only the fields of {by.value!r}, which is chosen in Which offsets (select_by)"
        raise InvalidSelection.of_backfill(rule=rule, seen=" and ".join(chosen) or "none")
    if partitions and (offsets or plan is not None):
        raise InvalidSelection.of_backfill(
            rule="partitions only with a time window or the retained log",
            seen=f"partitions with {chosen[0]}",
        )
    if offsets:
        return OffsetRanges(spans=spans_by_partition(map(_range, offsets)))
    if plan is not None:
        return PlanRanges(sequence=plan)
    if retained:
        return RetainedLog(partitions=partitions)
    window = TimeWindow(start=_moment(start), end=_moment(end), partitions=partitions)
    if window.start >= window.end:
        raise InvalidSelection.of_backfill(
            rule="a time window that starts before its end", seen=f"{start} and {end}"
        )
    return window


def split_list(text: str | None) -> list[str]:
    """Return the parts of a form field, separated by commas or line ends outside `[0, 4)`."""
    parts = re.split(r"[,\n](?![^\[]*\))", text or "")
    return [part.strip() for part in parts if part.strip()]


def _range(text: str) -> tuple[int, Span]:
    ends = rf"({_NUMBER})\s*-\s*({_NUMBER})|\[({_NUMBER}),\s*({_NUMBER})\)"
    found = re.fullmatch(rf"\s*({_NUMBER})\s*:\s*(?:{ends})\s*", text)
    numbers = [int(number) for number in found.groups() if number] if found else []
    if not numbers or numbers[1] >= numbers[2]:
        raise InvalidSelection.of_backfill(
            rule="PARTITION:START-END with START < END, where END is the next offset after",
            seen=repr(text),
        )
    return numbers[0], Span(numbers[1], numbers[2])


def _moment(text: str | None) -> datetime:
    try:
        return parse_time(text or "")
    except ValueError:
        rule = f"both ends of a time window, each {TIME_RULE}"
        raise InvalidSelection.of_backfill(rule=rule, seen=repr(text)) from None


# -- chunks ----------------------------------------------------------------------------------------


def chunks(
    pipeline: str, wanted: Mapping[int, SpanSet], chunk_offsets: int, task_offsets: int
) -> tuple[Mapping[int, SpanSet], ...]:
    """Divide offsets into chunks that land one after the other, lowest offsets first.

    Partitions take turns, each with the offsets of one file. So a chunk has work for many tasks,
    and many partitions do not lead to small files.

    Args:
        pipeline: Pipeline name, for the error.
        wanted: The offsets, by partition.
        chunk_offsets: Maximum offsets of one chunk.
        task_offsets: Maximum offsets of one file.

    Raises:
        BackfillTooLarge
    """
    total = size_of(wanted)
    most = min(chunk_offsets, max(task_offsets, chunk_offsets // _MOST_PIECES))
    made = [_Chunk(room=chunk_offsets)]
    turns = [(p, _pieces(spans, most)) for p, spans in sorted(wanted.items())]
    while turns and -(-total // chunk_offsets) <= MAX_CHUNKS >= len(made):
        left = []
        for partition, pieces in turns:
            if piece := next(pieces, None):
                left.append((partition, pieces))
                for span in piece:
                    _add(made, partition, span, chunk_offsets)
        turns = left
    if turns or len(made) > MAX_CHUNKS:
        raise BackfillTooLarge.of_chunks(
            pipeline=pipeline,
            offsets=total,
            chunk_offsets=chunk_offsets,
            chunks=max(-(-total // chunk_offsets), len(made)),
            most=MAX_CHUNKS,
        )
    return tuple(
        {p: SpanSet.of(spans) for p, spans in chunk.spans.items()} for chunk in made if chunk.spans
    )


_MOST_PIECES = 1_000
"""Maximum pieces of one chunk."""
_MOST_RANGES = 20
"""Maximum ranges of one partition in a chunk; Spark reads each further range in another scan."""


@dataclass(slots=True)
class _Chunk:
    room: int
    spans: dict[int, list[Span]] = field(default_factory=dict)


def _pieces(spans: SpanSet, most: int) -> Iterator[list[Span]]:
    """Yield the offsets of a partition in pieces with limited offsets and ranges."""
    piece: list[Span] = []
    size = 0
    for span in spans:
        start = span.start
        while start < span.end:
            end = min(span.end, start + most - size)
            piece.append(Span(start, end))
            size += end - start
            start = end
            if size == most or len(piece) == _MOST_RANGES:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece


def _add(made: list[_Chunk], partition: int, span: Span, chunk_offsets: int) -> None:
    """Add a span to the last chunk; append chunks for offsets that do not fit."""
    start = span.start
    while start < span.end:
        chunk = made[-1]
        own = chunk.spans.get(partition, [])
        touches = bool(own) and own[-1].end == start
        if not chunk.room or (len(own) == _MOST_RANGES and not touches):
            made.append(_Chunk(room=chunk_offsets))
            continue
        end = min(span.end, start + chunk.room)
        last = own.pop().start if touches else start
        chunk.spans[partition] = [*own, Span(last, end)]
        chunk.room -= end - start
        start = end

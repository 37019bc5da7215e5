"""A backfill: offsets that somebody asked for, decided once, and the chunks they land in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from tidemark.backfill.errors import TooManyChunks
from tidemark.core.errors import InvalidSelection
from tidemark.core.offsets import Span, SpanSet, size_of, spans_by_partition

MAX_CHUNKS = 1_000
"""Airflow maps a task over at most 1,024 values by default (`core.max_map_length`)."""


# -- what people ask for ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRanges:
    """Offsets by partition."""

    spans: Mapping[int, SpanSet]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """From the first record stamped at or after `start` to the first at or after `end`.

    A partition's records need not be in the order of their timestamps; Kafka's index finds the
    first one that is late enough.

    Attributes:
        start: The beginning, with its distance from UTC.
        end: The end, likewise.
        partitions: Partitions to look at; all if empty.
    """

    start: datetime
    end: datetime
    partitions: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedLog:
    """All that Kafka has now.

    Attributes:
        partitions: Partitions to take; all if empty.
    """

    partitions: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRanges:
    """What an earlier plan was about.

    Attributes:
        sequence: The plan's number.
        pipeline: Whose plan; None for the pipeline's own.
    """

    sequence: int
    pipeline: str | None = None


Selection: TypeAlias = OffsetRanges | TimeWindow | RetainedLog | PlanRanges
"""How somebody says which offsets they want."""


def select(
    *,
    offsets: Sequence[str] = (),
    start: str | None = None,
    end: str | None = None,
    retained: bool = False,
    plan: int | None = None,
    plan_of: str | None = None,
    partitions: Collection[int] = (),
) -> Selection:
    """What somebody means who fills in a form or a command line, in exactly one of its ways.

    Args:
        offsets: Ranges such as `0:100-200`: of partition 0 the offsets 100 to 199.
        start: Beginning of a time window, ISO 8601 with its distance from UTC.
        end: Its end, the first moment after it.
        retained: All that Kafka has now.
        plan: Number of an earlier plan, for what that was about.
        plan_of: Whose plan, if it is not the pipeline's own.
        partitions: Of a time window or the retained log, only these.

    Raises:
        InvalidSelection
    """
    ways = {
        "offset ranges": bool(offsets),
        "a time window": start is not None or end is not None,
        "the retained log": retained,
        "a plan's ranges": plan is not None,
    }
    chosen = [way for way, is_chosen in ways.items() if is_chosen]
    if len(chosen) != 1:
        raise InvalidSelection(
            rule=f"one of: {', '.join(ways)}", seen=" and ".join(chosen) or "none of them"
        )
    if partitions and (offsets or plan is not None):
        raise InvalidSelection(
            rule="partitions beside a time window or the retained log only",
            seen=f"partitions beside {chosen[0]}",
        )
    if offsets:
        return OffsetRanges(spans=spans_by_partition(map(_range, offsets)))
    if plan is not None:
        return PlanRanges(sequence=plan, pipeline=plan_of)
    if retained:
        return RetainedLog(partitions=partitions)
    window = TimeWindow(start=_moment(start), end=_moment(end), partitions=partitions)
    if window.start >= window.end:
        raise InvalidSelection(
            rule="a time window whose beginning is before its end", seen=f"{start} and {end}"
        )
    return window


def _range(text: str) -> tuple[int, Span]:
    found = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*-\s*(\d+)\s*", text)
    numbers = [int(number) for number in found.groups()] if found else []
    if not numbers or numbers[1] >= numbers[2]:
        raise InvalidSelection(
            rule="PARTITION:START-END with START < END, where END is the next offset after",
            seen=repr(text),
        )
    return numbers[0], Span(numbers[1], numbers[2])


def _moment(text: str | None) -> datetime:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidSelection(
            rule="both ends of a time window, such as 2026-03-01T00:00:00Z", seen=repr(text)
        )
    return moment


# -- what it comes to ------------------------------------------------------------------------------


def chunks(
    pipeline: str, wanted: Mapping[int, SpanSet], chunk_offsets: int, task_offsets: int
) -> tuple[Mapping[int, SpanSet], ...]:
    """Offsets in parts that are landed one after the other, lowest first in each partition.

    Partitions take turns with as much as makes one file, so that a chunk has work for many tasks,
    and files do not get small because there are many partitions.

    Args:
        pipeline: Pipeline name, for the error.
        wanted: The offsets, by partition.
        chunk_offsets: Most offsets of one chunk.
        task_offsets: Most offsets of one file.

    Raises:
        TooManyChunks
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
        raise TooManyChunks(
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
"""Pieces of one chunk."""
_MOST_RANGES = 20
"""Ranges of one partition in a chunk: Spark reads each further one by itself."""


@dataclass(slots=True)
class _Chunk:
    room: int
    spans: dict[int, list[Span]] = field(default_factory=dict)


def _pieces(spans: SpanSet, most: int) -> Iterator[list[Span]]:
    """The offsets of a partition in turn, each at most so many offsets and so many ranges."""
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
    """Put a span into the last chunk, and what has no room there into further ones."""
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


def chunk_requester(requested_by: str, number: int) -> str:
    """Who asks for the plan of a backfill's chunk, counted from 1."""
    return f"{requested_by}#{number}"


def is_chunk_of(requested_by: str, requester: str) -> bool:
    """Whether a plan's requester is a chunk of the backfill that somebody asked for."""
    return requester.startswith(f"{requested_by}#")

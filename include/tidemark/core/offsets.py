"""Half-open offset ranges and sets of them.

Every range inside Tidemark is `[start, end)`: `end` is the next offset to read, as in Kafka's own
committed offsets. Offsets are 64-bit and may be sparse (S6), so the size of a range is only an
upper bound on its records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Self, TypeVar

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open offset range `[start, end)` of one partition, which the context names."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a span needs 0 <= start < end, got [{self.start}, {self.end})")

    @property
    def size(self) -> int:
        """Number of offsets in the span; at most this many records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


def spans_by_partition(placed: Iterable[tuple[int, Span]]) -> dict[int, SpanSet]:
    """Return the set of offsets of each partition, from spans in any order."""
    spans: dict[int, list[Span]] = {}
    for partition, span in placed:
        spans.setdefault(partition, []).append(span)
    return {partition: SpanSet.of(some) for partition, some in spans.items()}


def union_by_partition(parts: Iterable[Mapping[int, SpanSet]]) -> Mapping[int, SpanSet]:
    """Return the offsets that are in at least one of the parts, by partition."""
    return spans_by_partition(
        (partition, span) for part in parts for partition, spans in part.items() for span in spans
    )


def difference_by_partition(
    some: Mapping[int, SpanSet], others: Mapping[int, SpanSet]
) -> Mapping[int, SpanSet]:
    """Return the offsets of `some` that are not in `others`, without empty partitions."""
    left = {p: spans.difference(others.get(p, SpanSet())) for p, spans in some.items()}
    return {partition: spans for partition, spans in left.items() if spans}


def intersection_by_partition(
    some: Mapping[int, SpanSet], others: Mapping[int, SpanSet]
) -> Mapping[int, SpanSet]:
    """Return the offsets that are in `some` and in `others`, without empty partitions."""
    both = {p: spans.intersection(others.get(p, SpanSet())) for p, spans in some.items()}
    return {partition: spans for partition, spans in both.items() if spans}


def union(
    parts: Iterable[Mapping[_Key, Mapping[int, SpanSet]]],
) -> Mapping[_Key, Mapping[int, SpanSet]]:
    """Return the offsets that are in at least one of the parts, by key and partition.

    Args:
        parts: Offsets by topic id, by batch, or by another key.
    """
    found: dict[_Key, list[Mapping[int, SpanSet]]] = {}
    for part in parts:
        for key, spans in part.items():
            found.setdefault(key, []).append(spans)
    return {key: union_by_partition(some) for key, some in found.items()}


def difference(
    some: Mapping[_Key, Mapping[int, SpanSet]], others: Mapping[_Key, Mapping[int, SpanSet]]
) -> Mapping[_Key, Mapping[int, SpanSet]]:
    """Return the offsets of `some` that are not in `others`, without empty keys."""
    left = {key: difference_by_partition(spans, others.get(key, {})) for key, spans in some.items()}
    return {key: spans for key, spans in left.items() if spans}


def intersection(
    some: Mapping[_Key, Mapping[int, SpanSet]], others: Mapping[_Key, Mapping[int, SpanSet]]
) -> Mapping[_Key, Mapping[int, SpanSet]]:
    """Return the offsets that are in `some` and in `others`, without empty keys."""
    both = {
        key: intersection_by_partition(spans, others.get(key, {})) for key, spans in some.items()
    }
    return {key: spans for key, spans in both.items() if spans}


def span_lists(spans: Mapping[int, SpanSet]) -> list[list[int]]:
    """Return plain values of offsets, for JSON: partition, start and end of each span."""
    return [[p, span.start, span.end] for p, some in sorted(spans.items()) for span in some]


def size_of(spans: Mapping[int, SpanSet]) -> int:
    """Return the number of offsets in all partitions."""
    return sum(each.size for each in spans.values())


def size_of_all(offsets: Mapping[_Key, Mapping[int, SpanSet]]) -> int:
    """Return the number of offsets of all keys."""
    return sum(map(size_of, offsets.values()))


@dataclass(frozen=True, slots=True)
class SpanSet:
    """A set of offsets as sorted, disjoint spans; adjacent spans are merged."""

    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Self:
        """Build a set from spans in any order, which may overlap or be adjacent."""
        merged: list[Span] = []
        # By the start alone: a comparison of two `Span` is slower.
        for span in sorted(spans, key=attrgetter("start")):
            if merged and span.start <= merged[-1].end:
                merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
            else:
                merged.append(span)
        return cls(tuple(merged))

    @classmethod
    def of_numbers(cls, numbers: Iterable[int]) -> Self:
        """Build a set of single offsets, or of other numbers such as those of plans."""
        return cls.of(Span(number, number + 1) for number in numbers)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def numbers(self) -> list[int]:
        """Return the single offsets or numbers, ascending."""
        return [number for span in self.spans for number in range(span.start, span.end)]

    def __contains__(self, number: int) -> bool:
        return bool(self.within(Span(number, number + 1)))

    def __bool__(self) -> bool:
        return bool(self.spans)

    @property
    def size(self) -> int:
        """Number of offsets in the set."""
        return sum(span.size for span in self.spans)

    def union(self, other: SpanSet) -> SpanSet:
        """Return the offsets that are in this set, in the other, or in both."""
        if not (self.spans and other.spans):
            return self if self.spans else other
        return SpanSet.of((*self.spans, *other.spans))

    def difference(self, other: SpanSet) -> SpanSet:
        """Return the offsets of this set that are not in the other.

        Compares each span a few times at most, because sets may have a span for each record.
        """
        left: list[Span] = []
        others = other.spans
        lowest = self.spans[0].start if self.spans else 0
        at = bisect_right(others, lowest, key=lambda span: span.end)
        for span in self.spans:
            cursor = span.start
            while at < len(others) and others[at].start < span.end:
                if others[at].start > cursor:
                    left.append(Span(cursor, others[at].start))
                cursor = max(cursor, others[at].end)
                if cursor > span.end:
                    # The other span may also overlap the next span of this set.
                    break
                at += 1
            if cursor < span.end:
                left.append(Span(cursor, span.end))
        return SpanSet(tuple(left))

    def intersection(self, other: SpanSet) -> SpanSet:
        """Return the offsets that are in both sets."""
        return self.difference(self.difference(other))

    def within(self, bounds: Span) -> SpanSet:
        """Return the offsets of this set that are inside `bounds`."""
        first = bisect_right(self.spans, bounds.start, key=lambda span: span.end)
        after = bisect_left(self.spans, bounds.end, key=lambda span: span.start)
        return SpanSet(
            tuple(
                Span(max(span.start, bounds.start), min(span.end, bounds.end))
                for span in self.spans[first:after]
            )
        )

    def before(self, offset: int) -> SpanSet:
        """Return the offsets of this set below `offset`."""
        return SpanSet(
            tuple(Span(s.start, min(s.end, offset)) for s in self.spans if s.start < offset)
        )

    def missing_from(self, wanted: Span) -> SpanSet:
        """Return the part of `wanted` that is not in this set."""
        return SpanSet((wanted,)).difference(self)

    def first(self, count: int) -> SpanSet:
        """Return the lowest `count` offsets, or all if there are fewer."""
        taken = []
        for span in self.spans:
            if count <= 0:
                break
            taken.append(Span(span.start, min(span.end, span.start + count)))
            count -= span.size
        return SpanSet(tuple(taken))

    def last(self, count: int) -> SpanSet:
        """Return the highest `count` offsets, or all if there are fewer."""
        return self.difference(self.first(self.size - count))

    def overlap_size(self, wanted: Span) -> int:
        """Return the number of offsets of `wanted` that are in this set."""
        return wanted.size - self.missing_from(wanted).size

    def contiguous_end(self, start: int) -> int:
        """Return the end of the span that contains `start`; `start` itself if no span does.

        In a set of landed offsets this is the committed offset (S3). It never passes an unread one.
        """
        for span in self.spans:
            if span.start <= start < span.end:
                return span.end
        return start

"""Offsets as conditions of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.core.offsets import SpanSet


def at_offsets(topic_id: str, spans: Mapping[int, SpanSet]) -> Column:
    """The condition that rows of one incarnation at some offsets meet, and no others."""
    return (F.col("topic_id") == topic_id) & _any_of(
        [
            (F.col("partition") == partition) & _any_of(list(_places(some)))
            for partition, some in spans.items()
        ]
    )


def _places(spans: SpanSet) -> Iterator[Column]:
    """Conditions for the offsets of one partition; those of single ones are one look-up."""
    offset = F.col("offset")
    single = [span.start for span in spans if span.size == 1]
    if single:
        yield offset.isin(single)
    for span in spans:
        if span.size > 1:
            yield (offset >= span.start) & (offset < span.end)


def _any_of(conditions: Sequence[Column]) -> Column:
    """Conditions in pairs of pairs: thousands of them in a row are too deep for a planner."""
    if len(conditions) <= 2:
        return reduce(Column.__or__, conditions)
    middle = len(conditions) // 2
    return _any_of(conditions[:middle]) | _any_of(conditions[middle:])

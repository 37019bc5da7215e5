"""Spark conditions that select rows by offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

from tidemark.core.offsets import SpanSet


def at_offsets(topic_id: str, spans: Mapping[int, SpanSet]) -> Column:
    """Return the condition that selects the rows at these offsets of one topic incarnation.

    Args:
        topic_id: Topic id of the incarnation.
        spans: Offsets by partition.
    """
    return (F.col("topic_id") == topic_id) & any_of(
        [
            (F.col("partition") == partition) & any_of(list(_span_conditions(some)))
            for partition, some in spans.items()
        ]
    )


def _span_conditions(spans: SpanSet) -> Iterator[Column]:
    """Yield conditions for the offsets of one partition; single offsets share one condition."""
    offset = F.col("offset")
    single = [span.start for span in spans if span.size == 1]
    if single:
        yield offset.isin(single)
    for span in spans:
        if span.size > 1:
            yield (offset >= span.start) & (offset < span.end)


def any_of(conditions: Sequence[Column]) -> Column:
    """Return the disjunction as a balanced tree: a chain of thousands is too deep for Spark."""
    if not conditions:
        return F.lit(False)
    if len(conditions) <= 2:
        return reduce(Column.__or__, conditions)
    middle = len(conditions) // 2
    return any_of(conditions[:middle]) | any_of(conditions[middle:])

"""The newest or oldest records of a log, whose first and last offsets may be gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tidemark.core.offsets import SpanSet
from tidemark.core.record import LogRecord

ReadSpans = Callable[[Mapping[int, SpanSet]], Iterable[LogRecord]]
"""Reads the records at some offsets; each partition in offset order."""


def shares(spans: Mapping[int, SpanSet], records: int) -> dict[int, int]:
    """Return how many records to read of each partition.

    Partitions with fewer offsets than an equal share leave the rest to the others. Each partition
    with an offset has at least one record.
    """
    found: dict[int, int] = {}
    for number, partition in enumerate(sorted(spans, key=lambda each: spans[each].size)):
        equal = (records - sum(found.values())) // (len(spans) - number)
        found[partition] = min(spans[partition].size, max(1, equal))
    return found


def sampled_records(
    spans: Mapping[int, SpanSet],
    wanted: Mapping[int, int],
    read: ReadSpans,
    *,
    oldest: bool = False,
) -> list[LogRecord]:
    """Return the newest or the oldest records of some offsets.

    Args:
        spans: Offsets by partition.
        wanted: Number of records by partition.
        read: Reads records.
        oldest: Return the oldest records.

    Returns:
        The records, by partition and offset.
    """
    left = {partition: spans[partition] for partition, count in wanted.items() if count}
    found: dict[int, list[LogRecord]] = {partition: [] for partition in left}
    factor = 1
    # If the offsets at the end of the log are gaps, read ever longer ranges beside them.
    while left:
        missing = {partition: wanted[partition] - len(found[partition]) for partition in left}
        chosen = {
            partition: some.first(factor * missing[partition])
            if oldest
            else some.last(factor * missing[partition])
            for partition, some in left.items()
        }
        rows: dict[int, list[LogRecord]] = {partition: [] for partition in left}
        for record in read(chosen):
            rows[record.partition].append(record)
        for partition, some_rows in rows.items():
            count = missing[partition]
            found[partition] = (
                found[partition] + some_rows[:count]
                if oldest
                else some_rows[-count:] + found[partition]
            )
        left = {
            partition: rest
            for partition, some in left.items()
            if (rest := some.difference(chosen[partition]))
            and len(found[partition]) < wanted[partition]
        }
        factor *= 10
    return [record for partition in sorted(found) for record in found[partition]]

"""Number of records of a plan in its data table, from file statistics or by a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltalake import DeltaTable

from tidemark.core.offsets import Span
from tidemark.core.plan import Plan
from tidemark.delta.deletion_vectors import may_have_deletion_vectors
from tidemark.delta.table_io import query_rows


def records_by_range(table: DeltaTable, plan: Plan) -> Mapping[int, int]:
    """Count a plan's records in the loaded version, by index of the planned range.

    A task reads one partition and writes one file. So each file of a new commit belongs to one
    range, and its statistics are exact. For other files, such as compacted ones, a query counts
    the plan's rows.
    """
    by_files = _counted_by_files(table, plan)
    return _counted_by_rows(table, plan) if by_files is None else by_files


def _counted_by_files(table: DeltaTable, plan: Plan) -> Mapping[int, int] | None:
    """Count by statistics; None if the statistics of the files do not suffice."""
    # fence: deleted-rows-are-not-counted
    if may_have_deletion_vectors(table):
        # Statistics include the rows that a deletion vector removes.
        return None
    files = table.get_add_actions(flatten=True)
    if files.num_rows == 0:
        return {}
    if not set(_STATISTICS) <= set(files.column_names):
        return None
    records: dict[int, int] = {}
    ranges = _by_partition(plan)
    for statistics in zip(*(files.column(name).to_pylist() for name in _STATISTICS), strict=True):
        count, low_plan, high_plan, low_partition, high_partition, first, last = statistics
        if low_plan is None or high_plan is None:
            return None
        if not low_plan <= plan.sequence <= high_plan:
            continue
        if None in statistics:
            # For example a file with rows of several partitions.
            return None
        if low_plan != high_plan or low_partition != high_partition:
            return None
        index = _range_around(ranges.get(low_partition, ()), first, last)
        if index is None:
            return None
        records[index] = records.get(index, 0) + count
    return records


_STATISTICS = (
    "num_records",
    "min.plan_sequence",
    "max.plan_sequence",
    "min.partition",
    "max.partition",
    "min.offset",
    "max.offset",
)


def _by_partition(plan: Plan) -> Mapping[int, list[tuple[int, Span]]]:
    by_partition: dict[int, list[tuple[int, Span]]] = {}
    for index, planned in enumerate(plan.ranges):
        by_partition.setdefault(planned.partition, []).append((index, planned.span))
    return by_partition


def _range_around(spans: Sequence[tuple[int, Span]], first: int, last: int) -> int | None:
    for index, span in spans:
        if span.start <= first and last < span.end:
            return index
    return None


def _counted_by_rows(table: DeltaTable, plan: Plan) -> Mapping[int, int]:
    ranges = ", ".join(
        f"({index}, {planned.partition}, {planned.start}, {planned.end})"
        for index, planned in enumerate(plan.ranges)
    )
    counted = query_rows(
        table,
        f"""
        SELECT planned.index AS index, count(*) AS records
        FROM t JOIN (VALUES {ranges}) AS planned(index, partition, start, "end")
          ON t.partition = planned.partition
         AND t.offset >= planned.start AND t.offset < planned."end"
        WHERE t.plan_sequence = {plan.sequence}
        GROUP BY planned.index
        """,
        f"plan_sequence = {plan.sequence}",
    )
    return {row["index"]: row["records"] for row in counted}

"""Reads a data table's own log with delta-rs: which plans landed there, and how much of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tidemark.adapters.delta.rows import query
from tidemark.core.offsets import Span
from tidemark.core.plan import Landing, Plan, RangeCount
from tidemark.errors import ForeignCommit

_RECENT_COMMITS = 50


class DeltaDataLog:
    """The log of one pipeline's data table."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self._uri = uri
        self._storage_options = storage_options

    def find(self, plan: Plan) -> Landing | None:
        """The commit that landed `plan`; None if the table has none.

        A transaction version is not enough: a plan that was given up raises it without landing
        anything. The commit must carry the plan's fingerprint.

        Raises:
            ForeignCommit: The plan's transaction is there with another plan's fingerprint.
        """
        try:
            table = DeltaTable(self._uri, storage_options=self._storage_options)
        except TableNotFoundError:
            return None
        if (table.transaction_version(plan.app_id) or 0) < plan.sequence:
            return None
        for version, metadata in _commits(table):
            if metadata.get("fingerprint") == plan.fingerprint:
                table.load_as_version(version)
                return Landing(
                    sequence=plan.sequence, table_version=version, counts=_counts(table, plan)
                )
            if _same_transaction(metadata, plan):
                raise ForeignCommit(
                    pipeline=plan.pipeline,
                    sequence=plan.sequence,
                    fingerprint=plan.fingerprint,
                    other_fingerprint=str(metadata["fingerprint"]),
                )
        return None


def _commits(table: DeltaTable) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Versions with Tidemark's commit metadata, newest first; old ones are read only if asked."""
    recent = table.history(_RECENT_COMMITS)
    yield from _with_metadata(recent)
    if len(recent) == _RECENT_COMMITS:
        yield from _with_metadata(table.history()[_RECENT_COMMITS:])


def _with_metadata(history: list[dict[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for commit in history:
        try:
            metadata = json.loads(commit.get("userMetadata") or "null")
        except json.JSONDecodeError:
            continue
        if isinstance(metadata, dict) and "fingerprint" in metadata:
            yield commit["version"], metadata


def _same_transaction(metadata: Mapping[str, Any], plan: Plan) -> bool:
    return (
        metadata.get("pipeline") == plan.pipeline
        and metadata.get("sequence") == plan.sequence
        and metadata.get("epoch") == plan.epoch
        and metadata.get("kind") == plan.kind.value
    )


def _counts(table: DeltaTable, plan: Plan) -> tuple[RangeCount, ...]:
    """Records of each planned range, from the file statistics alone where they decide it.

    Spark writes one file per task and a task reads one partition, so each file of a fresh commit
    belongs to one range and its statistics are exact. Where files are of another make, such as
    compacted ones, the plan's rows are counted.
    """
    records = _counted_by_files(table, plan)
    if records is None:
        records = _counted_by_rows(table, plan)
    return tuple(
        RangeCount(
            partition=planned.partition,
            start=planned.start,
            end=planned.end,
            records=records.get(index, 0),
        )
        for index, planned in enumerate(plan.ranges)
    )


def _counted_by_files(table: DeltaTable, plan: Plan) -> Mapping[int, int] | None:
    """Records by index of the range; None if some file's statistics do not place it in one."""
    files = table.get_add_actions(flatten=True)
    if files.num_rows == 0:
        return {}
    if not set(_STATISTICS) <= set(files.column_names):
        return None
    records: dict[int, int] = {}
    ranges = _by_partition(plan)
    for statistics in zip(*(files.column(name).to_pylist() for name in _STATISTICS), strict=True):
        count, low_plan, high_plan, low_partition, high_partition, first, last = statistics
        if None in statistics:
            return None
        if not low_plan <= plan.sequence <= high_plan:
            continue
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
    counted = query(
        table,
        f"""
        SELECT planned.index AS index, count(*) AS records
        FROM t JOIN (VALUES {ranges}) AS planned(index, partition, start, "end")
          ON t.partition = planned.partition
         AND t.offset >= planned.start AND t.offset < planned."end"
        WHERE t.plan_sequence = {plan.sequence}
        GROUP BY planned.index
        """,
    )
    return {row["index"]: row["records"] for row in counted}

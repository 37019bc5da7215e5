"""Reads a data table's own log with delta-rs: which plans landed there, and how much of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

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
    belongs to one range and its statistics are exact. Files of another make, such as compacted
    ones, have their rows counted.
    """
    adds = pa.table(table.get_add_actions(flatten=True))
    ours = _files_of(adds, plan.sequence)
    records: dict[int, int] = {}
    for file in ours.to_pylist():
        index = _range_of(plan, file)
        if index is None:
            return _counted_rows(table, plan)
        records[index] = records.get(index, 0) + file["num_records"]
    return _range_counts(plan, records)


def _files_of(adds: pa.Table, sequence: int) -> pa.Table:
    if "min.plan_sequence" not in adds.column_names:
        return adds.slice(0, 0)
    low, high = adds["min.plan_sequence"], adds["max.plan_sequence"]
    unknown = pc.is_null(low)
    inside = pc.and_(pc.less_equal(low, sequence), pc.greater_equal(high, sequence))
    return adds.filter(pc.or_(unknown, pc.fill_null(inside, False)))


def _range_of(plan: Plan, file: Mapping[str, Any]) -> int | None:
    """Index of the only planned range that a file can belong to, by its statistics."""
    if file.get("min.plan_sequence") != plan.sequence or file["max.plan_sequence"] != plan.sequence:
        return None
    for index, planned in enumerate(plan.ranges):
        if (
            file["min.partition"] == file["max.partition"] == planned.partition
            and planned.start <= file["min.offset"]
            and file["max.offset"] < planned.end
        ):
            return index
    return None


def _counted_rows(table: DeltaTable, plan: Plan) -> tuple[RangeCount, ...]:
    rows = pa.table(
        table.scan(columns=["partition", "offset"], predicate=f"plan_sequence = {plan.sequence}")
    )
    records = {}
    for index, planned in enumerate(plan.ranges):
        offset = rows["offset"]
        in_range = pc.and_(
            pc.equal(rows["partition"], planned.partition),
            pc.and_(pc.greater_equal(offset, planned.start), pc.less(offset, planned.end)),
        )
        records[index] = pc.sum(in_range).as_py() or 0
    return _range_counts(plan, records)


def _range_counts(plan: Plan, records: Mapping[int, int]) -> tuple[RangeCount, ...]:
    return tuple(
        RangeCount(
            partition=planned.partition,
            start=planned.start,
            end=planned.end,
            records=records.get(index, 0),
        )
        for index, planned in enumerate(plan.ranges)
    )

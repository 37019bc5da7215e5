"""Merges into an upsert table without Spark."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from tests.support.upsert_lake import Row, UpsertLake
from tidemark.core.bookmark import OffsetList
from tidemark.core.offsets import SpanSet
from tidemark.delta.errors import EngineFailed
from tidemark.spec.upsert import MergePlan, MergeScope


@dataclass
class FileMerger:
    """Merges without Spark, with the transaction and the scopes of `SparkMerger`."""

    lake: UpsertLake

    def merge(self, merge: MergePlan) -> None:
        """Merge; see `SparkMerger.merge`."""
        try:
            self._merge_in_transaction(merge)
        except EngineFailed:
            if merge.scope is not MergeScope.KEYS:
                raise
            self._merge_in_transaction(merge.as_rebuild())

    def compact(self) -> None:
        """Do nothing: without Spark, a table has no deletion vectors."""

    def _merge_in_transaction(self, merge: MergePlan) -> None:
        table = DeltaTable(self.lake.upsert_uri)
        if (table.transaction_version(merge.app_id) or -1) >= merge.version:
            return
        found = pa.table(table.scan()).to_pylist()
        rows = {(row["partition"], row["key"]): row for row in found}
        if merge.scope is MergeScope.ALL:
            rows = self._newest(merge, self._rows(merge.version))
        else:
            self._update(merge, rows)
        self._commit(table, merge, list(rows.values()))

    def _update(self, merge: MergePlan, rows: dict[tuple[int, bytes], Row]) -> None:
        """Change the rows of a table."""
        changes, typed = merge.changes, self._rows(merge.version)
        new = [row for row in typed if _is_listed(row, changes.decoded)]
        keys = {(row["partition"], row["key"]) for row in new}
        if merge.scope is MergeScope.KEYS:
            for row in self._rows(merge.since or 0):
                if _is_listed(row, changes.removed):
                    keys.add((row["partition"], row["key"]))
            new = [row for row in typed if (row["partition"], row["key"]) in keys]
        newest = self._newest(merge, new)
        for key in keys:
            rows.pop(key, None)
            if key in newest:
                rows[key] = newest[key]

    def _newest(self, merge: MergePlan, rows: list[Row]) -> dict[tuple[int, bytes], Row]:
        return self.lake.newest_rows(rows, merge.incarnations)

    def _rows(self, version: int) -> list[Row]:
        rows: list[Row] = pa.table(DeltaTable(self.lake.typed_uri, version).scan()).to_pylist()
        return rows

    def _commit(self, table: DeltaTable, merge: MergePlan, rows: list[Row]) -> None:
        schema = pa.schema(table.schema().to_arrow())
        try:
            write_deltalake(
                table,
                pa.Table.from_pylist(rows, schema=schema),
                mode="overwrite",
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(merge.app_id, merge.version)],
                    custom_metadata={"userMetadata": merge.commit_metadata()},
                    max_commit_retries=0,
                ),
            )
        except DeltaError as failure:
            raise EngineFailed(operation="merging", reason=str(failure)) from failure


def _is_listed(row: Row, listed: OffsetList) -> bool:
    spans = listed.spans.get(row["topic_id"], {}).get(row["partition"], SpanSet())
    return row["plan_sequence"] in listed.plans or row["offset"] in spans

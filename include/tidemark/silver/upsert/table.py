"""The upsert table in Delta: its columns and its last merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf
from typing import Any

from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError

from tidemark.delta.checked_commits import refused_commit
from tidemark.delta.columns import BRONZE_SCHEMA, delta_type, nullable_column
from tidemark.delta.commit_log import changes_no_rows, commits_with_metadata, history
from tidemark.delta.copied_tables import for_writing
from tidemark.delta.data_table import DataTableSnapshot, DeltaDataTable
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.errors import TableAltered, TableConflict
from tidemark.delta.row_queries import stored_rows
from tidemark.delta.table_checks import check_owner, check_removals, field_types
from tidemark.delta.table_io import newest_table, open_if_exists
from tidemark.silver.typed.columns import decoded_parts
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType, Struct, inner_names, merged_type
from tidemark.spec.flattening import OWN_COLUMNS, flattened
from tidemark.spec.ref import PipelineKind, PipelineRef
from tidemark.spec.upsert import Envelope, LastMerge, MergePlan, UpsertSpec

_SEARCHED_COMMITS = 50
"""Commits to search for the last two merges. Only maintenance commits are between merges."""
_MERGES_BEFORE_COMPACTION = 20
"""Number of merges after which a compaction follows. Each merge adds a few small files."""
_REMOVED_SHARE = 0.1
"""Merges can remove this share of the stored rows before a compaction follows."""


@translates_delta_errors
class DeltaUpsertTable:
    """One pipeline's upsert table.

    Args:
        uri: URI of the table.
        spec: The spec of the upsert table.
    """

    def __init__(self, uri: str, spec: UpsertSpec) -> None:
        self._uri = uri
        self._spec = spec

    def last_merge(self, pipeline: str) -> LastMerge | None:
        """Return the last merge; None if the table is missing or needs a rebuild.

        Each merge stores the merge that it follows. If that is not the commit before it, two
        merges started from the same version, and the rows are unreliable.

        Raises:
            ForeignTable: The table belongs to another pipeline or program.
            TableAltered: A merge cannot replace rows.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return None
        check_owner(table, self._uri, str(PipelineRef(pipeline, PipelineKind.UPSERT)))
        check_removals(table, self._uri)
        newest, before, *_ = (*_merges(table), None, None)
        if newest is None:
            return None
        is_rebuild = newest["since"] is None
        follows_before = before is not None and (
            (before["version"], before["app_id"]) == (newest["since"], newest["app_id"])
        )
        if not (is_rebuild or follows_before):  # fence: two-merges-from-one-base
            return None
        return LastMerge(
            typed_version=newest["version"],
            typed_commit=newest.get("typed_commit"),
            definition=newest["definition"],
            incarnations=tuple(newest["incarnations"]),
            app_id=newest["app_id"],
        )

    def last_read(self, typed_id: str) -> int | None:
        """Return the version of the typed table that the newest merge read; None if it is unknown.

        This includes a merge whose rows a RESTORE removed or another program changed.

        Args:
            typed_id: The Delta id of the typed table.

        Returns:
            -1 if the newest merge read another typed table.
        """
        table = open_if_exists(self._uri)
        commits = commits_with_metadata(history(table, _SEARCHED_COMMITS)) if table else ()
        newest = next((each["merge"] for _, each in commits if "merge" in each), None)
        if newest is None:
            return None
        version: int = newest["version"]
        return version if f":{typed_id}:" in newest["app_id"] else -1

    def fits(self, columns: Mapping[Part, FieldType]) -> bool:
        """Return whether the table has these columns, or can have them by adding nested fields.

        A table that does not fit needs a rebuild.

        Args:
            columns: The types of keys and values in the typed table.

        Raises:
            TableAltered: No upsert table can be made from these columns.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return False
        present, wanted = self._types(table.schema()), self._types(self._schema(columns))
        return all(
            name in present and merged_type(present[name], kind) == kind
            for name, kind in wanted.items()
        )

    def _types(self, schema: Schema) -> Mapping[str, FieldType]:
        """Return the types of columns; columns with the fields of contents are one struct."""
        types = field_types(schema)
        own = {name: kind for name, kind in types.items() if name.lower() in OWN_COLUMNS}
        parts = decoded_parts(types, flattens=self._spec.flattens)
        return {**own, **{part.value: kind for part, kind in parts.items()}}

    def prepare(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """Create a missing table; add new fields to a table that fits.

        Raises:
            ForeignTable, TableAltered: As in `DataTable.prepare`.
            EngineFailed: The change may have been committed. Repeating the call is safe.
        """
        schema = self._schema(columns)
        if open_if_exists(self._uri) is None or self.fits(columns):
            DeltaDataTable(self._uri, schema, grows=True).prepare(
                str(PipelineRef(pipeline, PipelineKind.UPSERT))
            )

    def renew(self, merge: MergePlan) -> None:
        """Execute a renewal, unless another commit came first; the next run tries again."""
        table = newest_table(self._uri)
        # fence: renewal-follows-the-last-merge
        if table.version() != merge.upsert_version:
            return
        # Without it, the next merge may be a rebuild.
        with suppress(DeltaError):
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=_properties(merge)
            )

    def clear(self, merge: MergePlan) -> None:
        """Execute a merge of a typed table without rows. Needs no Spark.

        Raises:
            TableConflict: Another commit came first.
        """
        import pyarrow as pa

        table = newest_table(self._uri)
        if (table.transaction_version(merge.app_id) or 0) >= merge.version:
            return
        version = table.version()
        try:
            write_deltalake(
                for_writing(table),
                pa.schema(table.schema().to_arrow()).empty_table(),
                mode="overwrite",
                commit_properties=_properties(merge),
            )
        except CommitFailedError as refused:
            raise refused_commit(
                refused,
                self._uri,
                version,
                "removing all rows",
                lambda _: TableConflict.of_version(self._uri, version),
            ) from refused

    def needs_compaction(self) -> bool:
        """Return whether the merges since the last compaction or rebuild justify another one.

        A compaction that fails, or finds nothing to do, is due again within 20 further merges.
        """
        table = newest_table(self._uri)
        commits = history(table, _SEARCHED_COMMITS)
        stored = dict(commits_with_metadata(commits))
        merged, removed = list[int](), list[int]()
        for commit in commits:
            merge = stored.get(commit["version"], {}).get("merge")
            is_rebuild = merge is not None and merge["since"] is None
            if commit.get("operation") in _COMPACTIONS or is_rebuild:
                break
            if commit.get("operation") == "MERGE":
                metrics = commit.get("operationMetrics", {})
                changed = (metrics.get(f"numTargetRows{each}", 0) for each in _REMOVING)
                merged.append(commit["version"])
                removed.append(sum(map(int, changed)))
        else:
            # The last compaction is unknown.
            if len(commits) == _SEARCHED_COMMITS and len(merged) > 1:
                last, earlier = (version // _MERGES_BEFORE_COMPACTION for version in merged[:2])
                return last != earlier
        if not removed:
            return False
        if len(removed) % _MERGES_BEFORE_COMPACTION == 0:
            return True
        limit = _REMOVED_SHARE * (stored_rows(table) or inf)
        return sum(removed[1:]) <= limit < sum(removed)

    def version(self) -> int:
        """Return the newest version of the table; -1 if it is missing."""
        table = open_if_exists(self._uri)
        return -1 if table is None else int(table.version())

    def merge_after(self, version: int) -> Mapping[str, Any] | None:
        """Return the first merge after a version of the table, without renewals.

        Returns:
            The values of `MergePlan.as_record`. None without a later merge, or if the table has
            more than 50 later versions.
        """
        table = open_if_exists(self._uri)
        newer = 0 if table is None else table.version() - version
        if table is None or not 0 < newer <= _SEARCHED_COMMITS:
            return None
        merges = [
            metadata["merge"]
            for _, metadata in commits_with_metadata(history(table, newer))
            if "merge" in metadata and not metadata["merge"].get("is_renewal")
        ]
        if not merges:
            return None
        first = merges[-1]
        shared = {name: first[name] for name in ("scope", "since", "plans", "removed")}
        return {**shared, "typed_version": first["version"]}

    def _schema(self, columns: Mapping[Part, FieldType]) -> Any:
        try:
            return upsert_schema(columns, self._spec)
        except ValueError as missing:
            raise TableAltered.of_columns(self._uri, f"the typed table has no {missing}") from None


_COMPACTIONS = ("OPTIMIZE", "REORG")
_REMOVING = ("Updated", "Deleted")
"""Suffixes of metrics of Spark that count removed rows: an update removes a row, adds another."""


def _properties(merge: MergePlan) -> CommitProperties:
    return CommitProperties(
        app_transactions=[Transaction(merge.app_id, merge.version)],
        custom_metadata={"userMetadata": merge.commit_metadata()},
        max_commit_retries=0,
    )


def version_of_merge(table: DataTableSnapshot, typed_version: int) -> int | None:
    """Return the version that the newest merge of a typed version created; None without it."""
    commits = table.commits(_SEARCHED_COMMITS)
    merged = (v for v, each in commits if each.get("merge", {}).get("version") == typed_version)
    return next(merged, None)


def _merges(table: DeltaTable) -> Iterator[Mapping[str, Any]]:
    """Yield the metadata of merges, newest first; stop at a commit that may have changed rows."""
    commits = history(table, _SEARCHED_COMMITS)
    stored = dict(commits_with_metadata(commits))
    for commit in commits:
        metadata = stored.get(commit["version"], {})
        if "merge" in metadata:
            yield metadata["merge"]
        elif not changes_no_rows(commit, metadata):
            return


def upsert_schema(columns: Mapping[Part, FieldType], spec: UpsertSpec) -> Schema:
    """Return the columns of an upsert table: key, content, and position of the newest record.

    Args:
        columns: The types of keys and values in the typed table.
        spec: The spec of the upsert table.

    Raises:
        ValueError: The values do not have this envelope.
    """
    value = columns[Part.VALUE]
    path = spec.envelope.path_in(inner_names(value))
    if path is None:
        names = " and ".join(f"`{name}`" for name in sorted(spec.envelope.fields))
        raise ValueError(f"values with the fields {names}, alone or in `payload`")
    for name in (*path, *(["after"] if spec.envelope is Envelope.DEBEZIUM else [])):
        value = dict(value.fields)[name] if isinstance(value, Struct) else value
    contents: Mapping[str, FieldType] = {Part.VALUE: value}
    if spec.flattens:
        if not isinstance(value, Struct):
            raise ValueError("field `after` with fields of its own, which `decode.flatten` needs")
        contents = flattened(value)
    named = {field.name: field for field in BRONZE_SCHEMA.fields}
    places = ("topic_id", "partition", "offset", "timestamp", "plan_sequence")
    return Schema(
        [
            Field("key", delta_type(columns[Part.KEY]), nullable=True),
            *(Field(name, delta_type(kind), nullable=True) for name, kind in contents.items()),
            nullable_column("deleted", "boolean"),
            *(named[name] for name in places),
        ]
    )

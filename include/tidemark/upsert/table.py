"""The table of latest rows: its columns, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deltalake import DeltaTable, Field, Schema

from tidemark.lake.columns import BRONZE_SCHEMA, delta_type, field_type, nullable_column
from tidemark.lake.data_table import (
    DeltaDataTable,
    changes_no_rows,
    check_owner,
    commits_with_metadata,
)
from tidemark.lake.delta_errors import translates_delta_errors
from tidemark.lake.errors import ColumnsDiffer
from tidemark.lake.table_io import open_if_exists
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType, Struct, merged
from tidemark.spec.ref import PipelineKind, PipelineRef
from tidemark.spec.upsert import Envelope, Shown

_LOOKED_AT = 50
"""Commits that are looked back at for the newest two merges; between them is upkeep at most."""


@translates_delta_errors
class DeltaLatest:
    """One pipeline's table of latest rows.

    Args:
        uri: The table.
        envelope: What the content of records is wrapped in.
    """

    def __init__(self, uri: str, envelope: Envelope) -> None:
        self._uri = uri
        self._envelope = envelope

    def progress(self, pipeline: str) -> Shown | None:
        """As `LatestRows.progress`: by what its own commits tell.

        Each merge tells which one it goes on from. If that is not the one before it, two drivers
        were at work at the same time, and nobody knows what the rows are.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return None
        check_owner(table, self._uri, str(PipelineRef(pipeline, PipelineKind.UPSERT)))
        newest, before, *_ = (*_merges(table), None, None)
        if newest is None:
            return None
        made_anew = newest["since"] is None
        goes_on = before is not None and (
            (before["version"], before["base"]) == (newest["since"], newest["base"])
        )
        if not (made_anew or goes_on):  # fence: two-merges-from-one-base
            return None
        return Shown(
            version=newest["version"],
            typed_table=newest["typed"],
            rule=newest["rule"],
            base=newest["base"],
        )

    def fits(self, columns: Mapping[Part, FieldType]) -> bool:
        """As `LatestRows.fits`."""
        table = open_if_exists(self._uri)
        if table is None:
            return False
        present = {field.name: field_type(field.type) for field in table.schema().fields}
        wanted = {field.name: field_type(field.type) for field in self._schema(columns).fields}
        return all(
            name in present and merged(present[name], kind) == kind for name, kind in wanted.items()
        )

    def prepare(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """As `LatestRows.prepare`."""
        schema = self._schema(columns)
        if open_if_exists(self._uri) is None or self.fits(columns):
            DeltaDataTable(self._uri, schema, grows=True).prepare(
                str(PipelineRef(pipeline, PipelineKind.UPSERT))
            )

    def version(self) -> int:
        """As `LatestRows.version`."""
        table = open_if_exists(self._uri)
        return -1 if table is None else int(table.version())

    def _schema(self, columns: Mapping[Part, FieldType]) -> Any:
        try:
            return latest_schema(columns, self._envelope)
        except ValueError as missing:
            raise ColumnsDiffer(
                target=self._uri,
                difference=f"the typed table has not {missing}, so it has no rows to make",
            ) from None


def _merges(table: DeltaTable) -> Iterator[Mapping[str, Any]]:
    """What merges tell of themselves, newest first, until a commit that nobody knows."""
    history = table.history(_LOOKED_AT)
    told = dict(commits_with_metadata(history))
    for commit in history:
        metadata = told.get(commit["version"], {})
        if "merge" in metadata:
            yield metadata["merge"]
        elif not changes_no_rows(commit, metadata):
            return


def latest_schema(columns: Mapping[Part, FieldType], envelope: Envelope) -> Schema:
    """A latest row: the key and the content of a record, and where its newest record is.

    Args:
        columns: The types of keys and values in the typed table.
        envelope: What the content is wrapped in.

    Raises:
        ValueError: The values are not in this envelope.
    """
    value = columns[Part.VALUE]
    if envelope is Envelope.DEBEZIUM:
        fields = dict(value.fields) if isinstance(value, Struct) else {}
        if not {"after", "op"} <= fields.keys():
            raise ValueError("values with the fields `after` and `op`")
        value = fields["after"]
    named = {field.name: field for field in BRONZE_SCHEMA.fields}
    places = ("topic_id", "partition", "offset", "timestamp", "plan_sequence")
    return Schema(
        [
            Field("key", delta_type(columns[Part.KEY]), nullable=True),
            Field("value", delta_type(value), nullable=True),
            nullable_column("deleted", "boolean"),
            *(named[name] for name in places),
        ]
    )

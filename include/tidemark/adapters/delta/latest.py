"""The table of latest rows: its columns, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tidemark.adapters.delta.columns import field_type, latest_schema
from tidemark.adapters.delta.data_table import NEUTRAL, DeltaDataTable, check_owner
from tidemark.core.decoding import Part
from tidemark.core.fields import FieldType, merged
from tidemark.core.spec import UPSERT
from tidemark.core.upserts import Envelope, Shown
from tidemark.errors import ColumnsDiffer

_LOOKED_AT = 50
"""Commits that are looked back at for the newest two merges; between them is upkeep at most."""


@dataclass(frozen=True, slots=True)
class _Commit:
    version: int
    merge: Mapping[str, Any] | None
    """What it tells of a merge; None of anything that nobody knows the meaning of."""


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
        table = self._open()
        if table is None:
            return None
        check_owner(table, self._uri, f"{pipeline}@{UPSERT}")
        told = list(_merges(table))
        if not told or told[0].merge is None:
            return None
        newest = told[0].merge
        before = told[1].merge if len(told) > 1 else None
        made_anew = newest["since"] is None
        goes_on = before is not None and (
            (before["version"], before["base"]) == (newest["since"], newest["base"])
        )
        if not (made_anew or goes_on):
            return None
        return Shown(
            version=newest["version"],
            typed_table=newest["typed"],
            rule=newest["rule"],
            base=newest["base"],
        )

    def fits(self, columns: Mapping[Part, FieldType]) -> bool:
        """As `LatestRows.fits`."""
        table = self._open()
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
        if self._open() is None or self.fits(columns):
            DeltaDataTable(self._uri, schema, grows=True).prepare(f"{pipeline}@{UPSERT}")

    def version(self) -> int:
        """As `LatestRows.version`."""
        table = self._open()
        return -1 if table is None else int(table.version())

    def _schema(self, columns: Mapping[Part, FieldType]) -> Any:
        try:
            return latest_schema(columns, self._envelope)
        except ValueError as missing:
            raise ColumnsDiffer(
                target=self._uri,
                difference=f"the typed table has not {missing}, so it has no rows to make",
            ) from None

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri)
        except TableNotFoundError:
            return None


def _merges(table: DeltaTable) -> Iterator[_Commit]:
    """Commits that changed rows, newest first, until one that is no merge."""
    for commit in table.history(_LOOKED_AT):
        try:
            told = json.loads(commit.get("userMetadata") or "{}")
        except json.JSONDecodeError:
            told = {}
        if isinstance(told, dict) and "merge" in told:
            yield _Commit(commit["version"], told["merge"])
        elif commit.get("operation") in NEUTRAL or (isinstance(told, dict) and "added" in told):
            continue
        else:
            yield _Commit(commit["version"], None)
            return

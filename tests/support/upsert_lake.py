"""A typed table and its upsert table on real tables."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.typed_lake import DECODE, TypedLake
from tidemark.delta.noted_commits import NotedTable
from tidemark.silver.typed.followed_tables import NOTE
from tidemark.silver.upsert.service import Merger, Upserts
from tidemark.silver.upsert.spark import SparkMerger
from tidemark.silver.upsert.table import DeltaUpsertTable
from tidemark.spec.decode import Format, PayloadSpec
from tidemark.spec.fields import Struct
from tidemark.spec.upsert import Deletes, Envelope, MergePlan, UpsertSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]

_CONTENT = Struct((("n", "string"),))
_CHANGE = Struct((("before", _CONTENT), ("after", _CONTENT), ("op", "string")))


def change(op: str | None, content: str | None) -> str:
    """Return Debezium's JSON for a row that has this content, or had it before."""
    row = None if content is None else {"n": content}
    is_there = op not in ("d", "m")
    return json.dumps(
        {"before": None if is_there else row, "after": row if is_there else None, "op": op}
    )


@dataclass
class UpsertLake(TypedLake):
    """A typed table and its upsert table.

    Attributes:
        spark: The session that merges; None to merge without Spark.
        deletes: What a deletion does to the row of its key.
        envelope: The form of values.
        flattens: Whether the fields of values are columns.
        deletion_vectors: Whether merges use deletion vectors.
    """

    spark: SparkSession | None = None
    deletes: Deletes = Deletes.SOFT
    envelope: Envelope = Envelope.NONE
    flattens: bool = False
    deletion_vectors: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.envelope is Envelope.DEBEZIUM:
            changes = PayloadSpec(format=Format.JSON, schema=_CHANGE)
            self.decode = replace(DECODE, value=changes, flattens=self.flattens)

    @property
    def upsert_uri(self) -> Path:
        """The upsert table."""
        return self.root / "silver" / "upsert"

    @property
    def upserts(self) -> Upserts:
        """The service that merges."""
        table = DeltaUpsertTable(str(self.upsert_uri), self.upsert)
        return Upserts(
            spec=self.spec,
            upsert=self.upsert,
            control=self.control,
            typed=NotedTable(str(self.typed_uri), NOTE, owner=self.spec.name),
            columns=self.tables.columns,
            table=table,
        )

    @property
    def upsert(self) -> UpsertSpec:
        """The spec of the upsert table."""
        return UpsertSpec(
            target="silver/upsert",
            deletes=self.deletes,
            envelope=self.envelope,
            flattens=self.flattens,
            deletion_vectors=self.deletion_vectors,
        )

    @property
    def merger(self) -> Merger:
        """Executes merges, with Spark if there is a session."""
        from tests.support.file_merger import FileMerger

        session = self.spark
        if session is None:
            return FileMerger(self)
        return SparkMerger(lambda: session, str(self.typed_uri), str(self.upsert_uri), self.upsert)

    def merge(self) -> MergePlan | None:
        """Decode and merge the missing records; return the merge."""
        self.run()
        return self.upserts.execute(self.merger)

    def land_records(self, *payloads: tuple[str | None, str | None], partition: int = 0) -> int:
        """Land records with these keys and values; return the plan number."""
        pairs = [
            (None if key is None else key.encode(), None if value is None else value.encode())
            for key, value in payloads
        ]
        return self.bronze.land_payloads(pairs, partition).sequence

    def typed_rows(self) -> list[Row]:
        """Rows of the typed table, with values in one column."""
        rows: list[Row] = pa.table(DeltaTable(self.typed_uri).scan()).to_pylist()
        if self.flattens:
            for row in rows:
                value = {name: row.pop(name) for name in ("before", "after", "op")}
                row["value"] = None if row.pop("tombstone") else value
        return rows

    def upsert_rows(self) -> dict[tuple[int, bytes], Row]:
        """Rows of the upsert table by partition and key; no key has two rows.

        Flattened content is one value again; no content has only null fields.
        """
        rows = pa.table(DeltaTable(self.upsert_uri).scan()).to_pylist()
        if self.flattens:
            for row in rows:
                content = row.pop("n")
                row["value"] = None if content is None else {"n": content}
        found = {(row["partition"], row["key"]): row for row in rows}
        assert len(found) == len(rows)
        return found

    def visible(self) -> dict[str, Any]:
        """Content by key, without deleted rows."""
        rows = self.upsert_rows().values()
        return {row["key"].decode(): row["value"] for row in rows if not row["deleted"]}

    def content_of(self, value: Any) -> tuple[Any, bool]:
        """Return the content of a value, and whether it is a deletion."""
        if self.envelope is Envelope.NONE or value is None:
            return value, value is None
        return value["after"], value["op"] == "d"

    def payload(self, random: Random) -> str | None:
        """Return a random value."""
        content = random.choice(["1", "2", "3"])
        if self.envelope is Envelope.NONE:
            return random.choice([None, content, content, content])
        op = random.choice([None, "c", "u", "r", "d", "d", "m", "tombstone"])
        return None if op == "tombstone" else change(op, content)

    def expected_rows(self, order: tuple[str, ...]) -> dict[tuple[int, bytes], Row]:
        """Return the expected rows, computed from the typed table in Python."""
        return self.newest_rows(self.typed_rows(), order)

    def newest_rows(
        self, rows: Collection[Row], order: tuple[str, ...]
    ) -> dict[tuple[int, bytes], Row]:
        """Return the row of the upsert table for each key of some typed rows."""
        newest: dict[tuple[int, bytes], Row] = {}
        content: dict[tuple[int, bytes], Any] = {}
        ordered = sorted(rows, key=lambda row: (order.index(row["topic_id"]), row["offset"]))
        for row in ordered:
            if row["key"] is None:
                continue
            place = (row["partition"], row["key"])
            after, deleted = self.content_of(row["value"])
            if after is None and not deleted:
                continue
            newest[place] = row
            if not deleted:
                content[place] = after
        made = {}
        for place, row in newest.items():
            _, deleted = self.content_of(row["value"])
            if deleted and self.deletes is Deletes.HARD:
                continue
            names = ("topic_id", "partition", "offset", "timestamp", "plan_sequence", "key")
            made[place] = {
                **{name: row[name] for name in names},
                "value": content.get(place),
                "deleted": deleted,
            }
        return made

    def check(self, order: tuple[str, ...] = ("id-1",)) -> None:
        """Check that the table has the rows of the model, and that nothing is left to merge."""
        super().check()
        assert self.upsert_rows() == self.expected_rows(order)
        assert self.upserts.next() is None

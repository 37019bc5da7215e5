"""A typed table over records that begin with the ids of a registry's schemas, on real Spark."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
from deltalake import DeltaTable

from tests.support.payloads import Headers, PayloadLake
from tests.support.typed_lake import TypedLake
from tidemark.spec.decode import QuarantineReason
from tidemark.typed.formats.spark_payloads import FORMS_AT_ONCE
from tidemark.typed.spark_decoder import SparkDecoder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class FramedLake(TypedLake):
    """A typed table over records that are written with schemas of a registry.

    Attributes:
        spark: Spark.
        forms_at_once: The most forms of schemas of one pass.
    """

    spark: SparkSession = field(kw_only=True)
    forms_at_once: int = FORMS_AT_ONCE

    def __post_init__(self) -> None:
        self.bronze = PayloadLake(root=self.root)

    @property
    def sink(self) -> Any:
        """Decodes with Spark."""
        return SparkDecoder(
            self.spark,
            bronze=str(self.bronze.uri),
            typed=str(self.typed_uri),
            quarantine=str(self.root / self.decode.quarantine_target),
            spec=self.decode,
            schemas=self.schemas.store,
            forms_at_once=self.forms_at_once,
        )

    def land_values(
        self,
        values: list[bytes | None],
        partition: int = 0,
        key: bytes | None = b"k",
        headers: Headers = (),
    ) -> None:
        """Land records with these values."""
        assert isinstance(self.bronze, PayloadLake)
        self.bronze.land_payloads([(key, value) for value in values], partition, headers)

    def rows(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Typed rows by place."""
        rows = pa.table(DeltaTable(self.typed_uri).scan()).to_pylist()
        assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows)
        return {(row["partition"], row["offset"]): row for row in rows}

    def reasons(self) -> dict[tuple[int, int], tuple[QuarantineReason, int | None]]:
        """Why records are in quarantine, with the ids of their schemas."""
        records = self.quarantine.records()
        return {(each.partition, each.offset): (each.reason, each.schema_id) for each in records}

    def judge(self, schemas: Mapping[int, Any]) -> int:
        """Each record is what fastavro says, or in quarantine; how many are decoded."""
        rows, kept = self.rows(), self.reasons()
        assert isinstance(self.bronze, PayloadLake)
        assert sorted([*rows, *kept]) == sorted(self.bronze.values)
        for place, row in rows.items():
            payload = self.bronze.values[place]
            if payload is None:
                assert (row["value"], row["value_schema_id"]) == (None, None)
                continue
            schema_id = int.from_bytes(payload[1:5], "big")
            body = io.BytesIO(payload[5:])
            expected = fastavro.schemaless_reader(body, fastavro.parse_schema(schemas[schema_id]))
            assert body.read() == b""
            assert row["value_schema_id"] == schema_id
            assert bare(row["value"]) == bare(expected)
        self.check()
        return len(rows)

    def check(self) -> None:
        """Each bronze row is in one of the two tables, and the ledger says the same.

        What is in quarantine has its bytes there, frames and all.
        """
        assert isinstance(self.bronze, PayloadLake)
        quarantine = DeltaTable(self.root / self.decode.quarantine_target)
        for row in pa.table(quarantine.scan()).to_pylist():
            place = (row["partition"], row["offset"])
            if row["closed_by"] is None:
                kept = (row["key"], row["value"])
                assert kept == (self.bronze.keys[place], self.bronze.values[place])
        self.verify.verify().check()
        bronze, ledger = self.control.summary("events"), self.control.summary(self.spec.name)
        assert (ledger.landed, ledger.records) == (bronze.landed, bronze.records)


def bare(value: Any) -> Any:
    """A value without what is null."""
    if isinstance(value, dict):
        return {name: bare(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [bare(each) for each in value]
    return value

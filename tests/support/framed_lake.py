"""A typed table over records with schema ids of a registry, on real Spark."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
from deltalake import DeltaTable

from tests.support.services import NOW
from tests.support.typed_lake import TypedLake
from tidemark.silver.typed.formats.spark_payloads import FORMS_AT_ONCE
from tidemark.silver.typed.spark_decoder import SparkDecoder
from tidemark.spec.decode import QuarantineReason
from tidemark.spec.flattening import field_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class FramedLake(TypedLake):
    """A typed table over records with schemas of a registry.

    Attributes:
        spark: Spark.
        forms_at_once: Largest number of schema forms in one pass.
    """

    spark: SparkSession = field(kw_only=True)
    forms_at_once: int = FORMS_AT_ONCE

    @property
    def decoder(self) -> SparkDecoder:
        """Decodes with Spark."""
        return SparkDecoder(
            lambda: self.spark,
            bronze=str(self.bronze.uri),
            typed=str(self.typed_uri),
            quarantine=str(self.root / self.decode.quarantine_target),
            spec=self.decode,
            schemas=self.schemas.store,
            now=lambda: NOW,
            forms_at_once=self.forms_at_once,
        )

    def rows(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Return typed rows by partition and offset."""
        rows = pa.table(DeltaTable(self.typed_uri).scan()).to_pylist()
        assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows)
        return {(row["partition"], row["offset"]): row for row in rows}

    def reasons(self) -> dict[tuple[int, int], tuple[QuarantineReason, int | None]]:
        """Return reason and schema id of quarantined records, by partition and offset."""
        records = self.quarantine.records()
        return {(each.partition, each.offset): (each.reason, each.schema_id) for each in records}

    def judge(self, schemas: Mapping[int, Any]) -> int:
        """Compare typed rows with values of fastavro; return the number of decoded records."""
        rows, kept = self.rows(), self.reasons()
        assert sorted([*rows, *kept]) == sorted(self.bronze.payloads)
        for place, row in rows.items():
            payload = self.bronze.payloads[place].value
            value = self._value_of(row)
            if payload is None:
                assert (value, row["value_schema_id"]) == (None, None)
                continue
            schema_id = int.from_bytes(payload[1:5], "big")
            body = io.BytesIO(payload[5:])
            expected = fastavro.schemaless_reader(body, fastavro.parse_schema(schemas[schema_id]))
            assert body.read() == b""
            assert row["value_schema_id"] == schema_id
            assert bare(value) == bare(expected)
        self.check()
        return len(rows)

    def _value_of(self, row: Mapping[str, Any]) -> Any:
        """Return the decoded value of a typed row of either layout."""
        if not self.decode.flattens:
            return row["value"]
        fields = {field_name(name): each for name, each in row.items()}
        return None if row["tombstone"] else {name: each for name, each in fields.items() if name}


def bare(value: Any) -> Any:
    """Return a value without nulls."""
    if isinstance(value, dict):
        return {name: bare(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [bare(each) for each in value]
    return value

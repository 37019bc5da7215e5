"""A typed table over records with schema ids of a registry in memory, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.framed_lake import bare
from tests.support.registry import framed
from tests.support.typed_lake import DECODE, TypedLake
from tidemark.silver.typed.schemas import SchemaRegistry
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec, RegisteredSchema

_DECODE = replace(DECODE, value=PayloadSpec(format=Format.JSON_SCHEMA))


@dataclass
class MemoryRegistry:
    """A registry in memory.

    Attributes:
        fields: JSON types by field name, by schema id.
    """

    fields: dict[int, Mapping[str, str]]

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        if schema_id not in self.fields:
            return None
        properties = {name: {"type": kind} for name, kind in self.fields[schema_id].items()}
        text = json.dumps({"type": "object", "properties": properties})
        return RegisteredSchema(id=schema_id, kind="JSON", text=text)


def three_schemas() -> MemoryRegistry:
    """Return three schemas; each has one field more than the previous one."""
    fields = {"id": "integer", "price": "number", "note": "string"}
    return MemoryRegistry({n: dict(list(fields.items())[:n]) for n in (1, 2, 3)})


@dataclass
class RegisteredLake(TypedLake):
    """A lake of JSON objects with schema ids."""

    decode: DecodeSpec = _DECODE
    registry: SchemaRegistry | None = field(default_factory=three_schemas)

    def land_objects(self, schema_id: int, *values: Mapping[str, Any], partition: int = 0) -> None:
        """Land objects with this schema id."""
        payloads = [(None, framed(schema_id, json.dumps(each).encode())) for each in values]
        self.bronze.land_payloads(payloads, partition)

    def rows(self) -> dict[tuple[int, int], Any]:
        """Return decoded values by partition and offset."""
        rows = pa.table(DeltaTable(self.typed_uri).scan()).to_pylist()
        return {(row["partition"], row["offset"]): bare(row["value"]) for row in rows}

    def check(self) -> None:
        """Check the tables, and that each row has all fields of its record."""
        super().check()
        for place, value in self.rows().items():
            payload = self.bronze.payloads[place].value
            assert payload is not None
            assert value == json.loads(payload[5:])

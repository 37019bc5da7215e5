"""A typed table over records with schemas of a registry, without Spark, and without a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.framed_lake import bare
from tests.support.payloads import PayloadLake
from tests.support.registry import framed
from tests.support.typed_lake import DECODE, TypedLake
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec, RegisteredSchema
from tidemark.typed.schemas import SchemaRegistry

_DECODE = replace(DECODE, value=PayloadSpec(format=Format.JSON_SCHEMA))


@dataclass
class MemoryRegistry:
    """A registry in memory.

    Attributes:
        fields: JSON's types of the fields of objects, by name, by the id of their schema.
    """

    fields: dict[int, Mapping[str, str]]

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        if schema_id not in self.fields:
            return None
        properties = {name: {"type": kind} for name, kind in self.fields[schema_id].items()}
        text = json.dumps({"type": "object", "properties": properties})
        return RegisteredSchema(id=schema_id, kind="JSON", text=text)


def three_schemas() -> MemoryRegistry:
    """Each has a field more than the one before."""
    fields = {"id": "integer", "price": "number", "note": "string"}
    return MemoryRegistry({n: dict(list(fields.items())[:n]) for n in (1, 2, 3)})


@dataclass
class RegisteredLake(TypedLake):
    """Records are JSON objects behind the ids of their schemas."""

    decode: DecodeSpec = _DECODE
    registry: SchemaRegistry | None = field(default_factory=three_schemas)

    def __post_init__(self) -> None:
        self.bronze = PayloadLake(root=self.root)

    def land_objects(self, schema_id: int, *values: Mapping[str, Any], partition: int = 0) -> None:
        """Land objects that name this schema."""
        payloads = [(None, framed(schema_id, json.dumps(each).encode())) for each in values]
        assert isinstance(self.bronze, PayloadLake)
        self.bronze.land_payloads(payloads, partition)

    def rows(self) -> dict[tuple[int, int], Any]:
        """What is decoded, by place."""
        rows = pa.table(DeltaTable(self.typed_uri).scan()).to_pylist()
        return {(row["partition"], row["offset"]): bare(row["value"]) for row in rows}

    def check(self) -> None:
        """As for any; and each row has all that its record has."""
        super().check()
        assert isinstance(self.bronze, PayloadLake)
        for place, value in self.rows().items():
            payload = self.bronze.values[place]
            assert payload is not None
            assert value == json.loads(payload[5:])

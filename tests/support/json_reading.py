"""Reads payloads as JSON without Spark, as Spark's Python workers do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tests.support.typed_values import differences
from tidemark.silver.typed.formats import json_reader
from tidemark.spec.decode import Format, PayloadSpec
from tidemark.spec.fields import Struct
from tidemark.spec.type_parsing import parse_type


def spec_of(schema: Any, *, keeps_rest: bool = False) -> PayloadSpec:
    """Return a spec of JSON with the fields of a mapping."""
    fields = parse_type(schema)
    assert isinstance(fields, Struct)
    return PayloadSpec(format=Format.JSON, schema=fields, keeps_rest=keeps_rest)


def read(spec: PayloadSpec, payloads: Sequence[bytes | None]) -> list[dict[str, Any]]:
    """Return value, reason, detail and its path of each payload; times have no time zone.

    Checks that Python's own parser returns the same values.
    """
    assert spec.schema is not None
    column = pa.array(payloads, pa.binary())
    found = json_reader.read(column, spec.schema, keeps_rest=spec.keeps_rest)
    assert found.type == json_reader.read_type(spec.schema, keeps_rest=spec.keeps_rest)
    rows: list[dict[str, Any]] = found.to_pylist()
    for payload, row in zip(payloads, rows, strict=True):
        if row["reason"] is None:
            assert differences(payload, spec, row["value"]) == [], payload
        else:
            assert row["value"] is None
    return [
        {**row, "path": row["detail"].split(": ")[0] if row["reason"] == "malformed" else None}
        for row in rows
    ]
